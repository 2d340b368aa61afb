"""A network that others have trained, and the speech that it is tried on."""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import soundfile

from prnn_jax import convert

_SPEECH = Path(__file__).parents[1] / "examples/speech/corpus/test"

Run = Callable[[np.ndarray], np.ndarray]


class Network(NamedTuple):
    """A trained network.

    Attributes:
      name: where it is in its package.
      call: what makes ours of it.
      imported: ours.
      x: `[time, 1, input]` or batch-major, as ours takes it.
      runtime: its own.
      run: that on x, giving what ours gives.
      approximates: what its runtime is off by itself, of the largest output; 0 where
        it computes as exactly as it can.
    """

    name: str
    call: str
    imported: convert.Imported
    x: np.ndarray
    runtime: str
    run: Run
    approximates: float = 0.0


@functools.cache
def _samples() -> np.ndarray:
    files = sorted(_SPEECH.glob("*.ogg"))
    return np.concatenate([soundfile.read(file, dtype="float32")[0] for file in files])


def spectra(steps: int, size: int) -> np.ndarray:
    """`[steps, size]` sizes of the lines of spectra of speech, in logarithms from 0."""
    starts = np.arange(steps)[:, None] * 160
    window = np.hanning(2 * size).astype(np.float32)
    frames = _samples()[starts + np.arange(2 * size)] * window
    return np.log1p(10 * np.abs(np.fft.rfft(frames)[:, 1:])).astype(np.float32)


# ---- Keras ---------------------------------------------------------------------------


def arrays_of_h5(path: Path, layer: str, inside: str = "/") -> list[np.ndarray]:
    """The weights of a layer in a file of Keras 2."""
    import h5py

    with h5py.File(path) as file:
        group: Any = file[inside][layer]
        return [np.asarray(group[name]) for name in group.attrs["weight_names"]]


def hard_sigmoid_of_keras_2(a: Any) -> Any:
    """Keras 3 has another."""
    import keras

    return keras.ops.clip(0.2 * a + 0.5, 0, 1)


def layers_of_keras(
    shape: tuple[int, ...], kind: str, weights: list, *, both: bool = False, **options
) -> Run:
    """Layers one upon the other in Keras, on JAX; `both`: each in both directions."""
    os.environ.setdefault("KERAS_BACKEND", "jax")
    import keras

    layers = [
        getattr(keras.layers, kind)(len(w[1]), return_sequences=True, **options)
        for w in weights
    ]
    own = {f.__name__: f for f in options.values() if callable(f)}
    with keras.saving.custom_object_scope(own):  # it makes its two from descriptions
        layers = [keras.layers.Bidirectional(one) for one in layers] if both else layers
    model = keras.Sequential([keras.Input(shape[1:]), *layers])
    for layer, arrays in zip(layers, weights, strict=True):
        layer.set_weights(arrays)
    return model.predict_on_batch


def layers_of_keras_file(path: Path, names: list[str], shape: tuple[int, ...]) -> Run:
    """Some layers of a model of Keras, one upon the other."""
    os.environ.setdefault("KERAS_BACKEND", "jax")
    import keras

    model = keras.saving.load_model(path, compile=False)
    layers = [model.get_layer(name) for name in names]
    return keras.Sequential([keras.Input(shape[1:]), *layers]).predict_on_batch
