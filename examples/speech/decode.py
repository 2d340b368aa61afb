"""From the network's output to text, label by label."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np

from .text import BLANK, Vocabulary


class Spoken(NamedTuple):
    """A label, and its first and last output frame."""

    label: int
    first: int
    last: int


class Word(NamedTuple):
    """A word and when it was written down, in seconds, which may be late, or early."""

    word: str
    start: float
    end: float


def best_path(logits: np.ndarray) -> Iterator[Spoken]:
    """The best label of each frame: repeats merged, blanks dropped.

    logits: [time, labels], without padding.
    """
    path = logits.argmax(-1)
    edges = np.flatnonzero(np.diff(path, prepend=-1, append=-1))
    for first, end in pairwise(edges):
        if path[first] != BLANK:
            yield Spoken(int(path[first]), int(first), int(end) - 1)


def emitted(labels: np.ndarray) -> Iterator[Spoken]:
    """The labels [time, symbols] that a transducer has written, frame by frame."""
    for frame, place in np.argwhere(labels != BLANK):
        yield Spoken(int(labels[frame, place]), int(frame), int(frame))


class Decoder(Protocol):
    """Makes text of what a network gave of one recording, without padding."""

    def __call__(self, output: np.ndarray) -> str:
        """The text."""
        ...

    def words(self, output: np.ndarray, frame_seconds: float) -> list[Word]:
        """Its words, with their times in seconds."""
        ...


class Speller:
    """A decoder that takes the labels that `spoken` finds as they are."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        spoken: Callable[[np.ndarray], Iterator[Spoken]] = best_path,
    ):
        self._vocabulary, self._spoken = vocabulary, spoken

    def __call__(self, output: np.ndarray) -> str:
        """The text."""
        return self._vocabulary.decode(one.label for one in self._spoken(output))

    def words(self, output: np.ndarray, frame_seconds: float) -> list[Word]:
        """Its words, with their times in seconds."""
        found: list[Word] = []
        begins = True
        for label, first, last in self._spoken(output):
            piece = self._vocabulary.decode([label], goes_on=True)
            start, end = (round(n * frame_seconds, 3) for n in (first, last + 1))
            for n, part in enumerate(piece.split(" ")):
                begins |= n > 0
                if part and begins:
                    found.append(Word(part, start, end))
                    begins = False
                elif part:
                    found[-1] = Word(found[-1].word + part, found[-1].start, end)
        return found


class Writer:
    """A text that grows: what labels add to it."""

    def __init__(self, vocabulary: Vocabulary):
        self._vocabulary, self._begun = vocabulary, False

    def __call__(self, labels: Sequence[int] | np.ndarray) -> str:
        """What labels that are not blank add."""
        added = self._vocabulary.decode(labels, goes_on=self._begun)
        self._begun |= len(labels) > 0
        return added


class GreedyStream:
    """The text of the best path, piece by piece."""

    def __init__(self, vocabulary: Vocabulary):
        self._write = Writer(vocabulary)
        self._last = BLANK

    def __call__(self, logits: np.ndarray) -> str:
        """What these frames add to the text."""
        if not len(logits):
            return ""
        path = logits.argmax(-1)
        before = np.concatenate([[self._last], path[:-1]])
        self._last = path[-1]
        return self._write(path[(path != before) & (path != BLANK)])
