"""Transcribing with a trained model, and its errors."""

from collections import defaultdict
from collections.abc import Sequence

import jax
import numpy as np
from flax import nnx

from .batches import Shapes, make_batches
from .dataset import Utterance
from .decode import greedy
from .metrics import character_error_rate
from .model import Recogniser, output_frames


class Transcriber:
    """Utterances to texts by greedy decoding; dropout is off.

    Reads the parameters anew at every call, so that it can follow a training.
    """

    def __init__(self, recogniser: Recogniser, shapes: Shapes, batch_size: int):
        self._recogniser, self._shapes = recogniser, shapes
        self._batch_size = batch_size
        without_dropout = nnx.clone(recogniser)
        without_dropout.eval()
        graph = nnx.graphdef(without_dropout)
        self._forward = jax.jit(
            lambda state, features, frames: nnx.merge(graph, state)(features, frames)
        )

    def logits(self, utterances: Sequence[Utterance]) -> list[np.ndarray]:
        """[output_frames, labels] of each utterance."""
        state = nnx.state(self._recogniser)
        found = [np.zeros(0)] * len(utterances)
        for batch in make_batches(utterances, self._shapes, self._batch_size):
            logits = np.asarray(self._forward(state, batch.features, batch.frames))
            for row, row_logits, frames in zip(
                batch.rows, logits, batch.frames, strict=True
            ):
                if row >= 0:
                    found[row] = row_logits[: output_frames(frames)]
        return found

    def __call__(self, utterances: Sequence[Utterance]) -> list[str]:
        """Text of each utterance."""
        return [greedy(logits) for logits in self.logits(utterances)]


def error_rate(utterances: Sequence[Utterance], texts: Sequence[str]) -> float:
    """Character error rate over all utterances."""
    return character_error_rate(
        (utterance.clip.text, text)
        for utterance, text in zip(utterances, texts, strict=True)
    )


def error_rate_by_speaker(
    utterances: Sequence[Utterance], texts: Sequence[str]
) -> dict[str, tuple[int, float]]:
    """Number of utterances and character error rate of each speaker, worst first."""
    pairs = defaultdict(list)
    for utterance, text in zip(utterances, texts, strict=True):
        pairs[utterance.clip.speaker].append((utterance.clip.text, text))
    rates = {
        speaker: (len(of_speaker), character_error_rate(of_speaker))
        for speaker, of_speaker in pairs.items()
    }
    return dict(sorted(rates.items(), key=lambda item: -item[1][1]))
