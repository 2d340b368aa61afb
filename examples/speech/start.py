"""Beginning with the weights of an earlier run: for other recordings, other letters."""

import dataclasses
from typing import Any

import jax
from flax import nnx

from . import runs
from .config import ModelConfig, RunConfig
from .errors import SpeechError
from .model import Recogniser
from .report import Report

#: What may be another: it changes no weights, or those of the last layers only.
_FREE = {
    *("kind", "dropout", "reserve", "implementation"),
    *("characters", "vocabulary", "vocabulary_size", "vocabulary_file"),
    *("predictor_size", "predictor_projection", "joint_size"),
}
_FIXED = [f.name for f in dataclasses.fields(ModelConfig) if f.name not in _FREE]
_ENCODER = ("normalise", "front_end", "recurrent", "lookahead", "norm")
_LAST = ("out", "transducer")  # that know of labels


def begin(config: RunConfig, report: Report, recogniser: Recogniser) -> None:
    """With the weights of another run, if the settings say so."""
    if (other := config.train.begin_with) is None:
        return
    anew = begin_with(config, recogniser, *runs.load(other))
    others = f"; anew, for its other labels: {', '.join(anew)}" if anew else ""
    report.say(f"beginning with the weights of {other}{others}")


def begin_with(
    config: RunConfig, recogniser: Recogniser, earlier: RunConfig, trained: Recogniser
) -> list[str]:
    """Gives a recogniser the weights of a trained one, and its statistics.

    Returns:
      The layers that begin anew, since the labels are others.
    """
    if different := [
        f"{section}.{name}: {was} and {now}"
        for section, name in (
            *(("model", name) for name in _FIXED),
            *(("features", f.name) for f in dataclasses.fields(config.features)),
        )
        if (was := getattr(getattr(earlier, section), name))
        != (now := getattr(getattr(config, section), name))
    ]:
        raise SpeechError(
            f"{config.train.begin_with}: is a run of another network "
            f"({'; '.join(different)}): give the settings that it has"
        )
    same = recogniser.vocabulary.pieces == trained.vocabulary.pieces
    anew = []
    for name in (*_ENCODER, *_LAST):
        layer, other = getattr(recogniser, name), getattr(trained, name)
        if name in _LAST and not (same and _shapes(layer) == _shapes(other)):
            anew += [name] * (layer is not None)
        elif layer is not None:
            nnx.update(layer, nnx.state(other))
    return anew


def _shapes(layer: Any) -> list[tuple[str, tuple[int, ...]]]:
    leaves = jax.tree.leaves_with_path(layer and nnx.state(layer))
    return [(jax.tree_util.keystr(path), leaf.shape) for path, leaf in leaves]
