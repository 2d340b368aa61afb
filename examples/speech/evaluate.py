"""Transcribing with a trained model, and its errors."""

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
from flax import nnx

from .batches import Shapes, make_batches
from .config import RunConfig
from .dataset import Utterance
from .decode import greedy
from .metrics import Rate, error_rates
from .model import Recogniser, output_frames
from .text import Alphabet


@nnx.jit
def _forward(recogniser, features, frames):
    return recogniser(features, frames)


def logits(
    recogniser: Recogniser,
    utterances: Sequence[Utterance],
    shapes: Shapes,
    batch_size: int,
) -> list[np.ndarray]:
    """[output frames, labels] of each utterance."""
    found = [np.zeros(0)] * len(utterances)
    for batch in make_batches(utterances, shapes, batch_size):
        of_batch = np.asarray(_forward(recogniser, batch.features, batch.frames))
        for row, of_row, frames in zip(batch.rows, of_batch, batch.frames, strict=True):
            if row >= 0:
                found[row] = of_row[: output_frames(frames)]
    return found


def transcribe(
    config: RunConfig,
    recogniser: Recogniser,
    utterances: Sequence[Utterance],
    shapes: Shapes,
    decode: Callable[[np.ndarray], str] | None = None,
) -> list[str]:
    """Text of each utterance; greedy if nothing else is said."""
    alphabet = Alphabet(config.model.characters)
    decode = decode or (lambda of_row: greedy(of_row, alphabet))
    batch_size = config.train.batch_size
    return [decode(each) for each in logits(recogniser, utterances, shapes, batch_size)]


def by_speaker(
    utterances: Sequence[Utterance], texts: Sequence[str]
) -> dict[str, tuple[int, Rate]]:
    """Number of utterances and character error rate of each speaker, worst first."""
    pairs = defaultdict(list)
    for utterance, text in zip(utterances, texts, strict=True):
        pairs[utterance.clip.speaker].append((utterance.text, text))
    rates = {
        speaker: (len(of_speaker), error_rates(*zip(*of_speaker, strict=True))[0])
        for speaker, of_speaker in pairs.items()
    }
    return dict(sorted(rates.items(), key=lambda item: -item[1][1].rate))
