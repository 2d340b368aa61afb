"""Transcribing with a trained model, and its errors."""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import jax
import numpy as np
from flax import nnx

from .batches import Shapes, make_batches
from .config import RunConfig
from .dataset import Utterance
from .decode import Decoder, Speller, emitted
from .metrics import Rate, error_rates
from .model import Recogniser, output_frames
from .search import Greedy
from .text import Vocabulary
from .transducer import Transducer


class Search(Protocol):
    """What a transducer writes, e.g. search.Greedy; hashable."""

    def __call__(
        self, transducer: Transducer, heard: jax.Array, frames: jax.Array
    ) -> jax.Array:
        """Labels [batch, output time, symbols]."""
        ...


class Way(NamedTuple):
    """How a network's output becomes text: of a transducer, after a search."""

    decode: Decoder
    search: Search | None = None


def greedy(config: RunConfig, vocabulary: Vocabulary) -> Way:
    """Without a look at alternatives."""
    if config.model.kind == "transducer":
        return Way(Speller(vocabulary, emitted), Greedy(config.decode.symbols))
    return Way(Speller(vocabulary))


@nnx.jit(static_argnames="search")
def _forward(recogniser, features, frames, search: Search | None):
    output = recogniser(features, frames)
    if search is None:
        return output
    return search(recogniser.transducer, output, output_frames(frames))


def outputs(
    recogniser: Recogniser,
    utterances: Sequence[Utterance],
    shapes: Shapes,
    batch_size: int,
    search: Search | None = None,
) -> list[np.ndarray]:
    """[output frames, labels] of each utterance: logits, or what a search gives."""
    found = [np.zeros(0)] * len(utterances)
    for batch in make_batches(utterances, shapes, batch_size):
        of_batch = _forward(recogniser, batch.features, batch.frames, search)
        for row, of_row, frames in zip(
            batch.rows, np.asarray(of_batch), batch.frames, strict=True
        ):
            if row >= 0:
                found[row] = of_row[: output_frames(frames)]
    return found


def transcribe(
    config: RunConfig,
    recogniser: Recogniser,
    utterances: Sequence[Utterance],
    shapes: Shapes,
    way: Way | None = None,
) -> list[str]:
    """Text of each utterance; greedy if nothing else is said."""
    decode, search = way or greedy(config, recogniser.vocabulary)
    batch_size = config.train.batch_size
    found = outputs(recogniser, utterances, shapes, batch_size, search)
    return [decode(each) for each in found]


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
