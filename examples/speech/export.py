"""The recogniser as one program without this code: samples in, logits out.

Of a transducer, what it writes comes out: its loop is part of the program.

jax.export keeps it for CPU and CUDA at once. `python -m examples.speech export` writes
it beside a few lines of JSON that say how to read the logits.
"""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import export

from . import files
from .config import FeatureConfig, RunConfig
from .errors import SpeechError
from .features import ENERGY_FLOOR, frame_count, hann, mel_matrix
from .model import FRAME_STRIDE, Recogniser, output_frames
from .search import Greedy
from .subwords import VOCABULARY, Subwords

PROGRAM = "recogniser.jax"
DESCRIPTION = "recogniser.json"


def write(config: RunConfig, recogniser: Recogniser, folder: Path) -> Path:
    """Writes both files; the program takes [batch, samples] and lengths [batch]."""
    if folder.exists() and not folder.is_dir():
        raise SpeechError(f"{folder}: is a file; expected a folder for --out")
    # lax.scan: such a program runs where prnn_jax is not installed, too.
    model = dataclasses.replace(config.model, implementation="scan")
    portable = Recogniser(model, config.features, nnx.Rngs(0), recogniser.vocabulary)
    nnx.update(portable, nnx.state(recogniser))
    graph, weights = nnx.split(portable)

    def recognise(samples, lengths):
        features = _log_mel(samples, config.features)
        frames = jnp.maximum(frame_count(lengths, config.features), 0)
        model = nnx.merge(graph, weights)
        output, frames = model(features, frames), output_frames(frames)
        if model.transducer is not None:
            output = Greedy(config.decode.symbols)(model.transducer, output, frames)
        return output, frames

    batch, time = export.symbolic_shape(
        "batch, time", constraints=[f"time >= {config.features.window}"]
    )
    exported = export.export(jax.jit(recognise), platforms=["cpu", "cuda"])(
        jax.ShapeDtypeStruct((batch, time), np.float32),
        jax.ShapeDtypeStruct((batch,), np.int32),
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PROGRAM).write_bytes(exported.serialize())
    description = {
        "kind": config.model.kind,
        "sample_rate": config.features.sample_rate,
        # The text of each label from 1 on; 0 is blank.
        "pieces": recogniser.vocabulary.pieces,
        "frame_seconds": FRAME_STRIDE * config.features.hop_seconds,
    }
    (folder / DESCRIPTION).write_text(json.dumps(description, indent=2) + "\n")
    if isinstance(recogniser.vocabulary, Subwords):
        files.write(folder / VOCABULARY, recogniser.vocabulary.model)
    return folder / PROGRAM


def _log_mel(samples: jax.Array, config: FeatureConfig) -> jax.Array:
    """`features.log_mel` in JAX, for a batch."""
    starts = config.hop * jnp.arange(frame_count(samples.shape[1], config))
    windows = samples[:, starts[:, None] + jnp.arange(config.window)] * hann(config)
    spectrum = jnp.fft.rfft(windows, config.fft_size)
    energies = jnp.abs(spectrum) ** 2 @ mel_matrix(config)
    return jnp.log(energies + ENERGY_FLOOR)
