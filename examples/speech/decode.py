"""From the network's output to text, by the best label of each frame."""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from .text import BLANK, Alphabet


class Spoken(NamedTuple):
    """A label, and the first and last output frame in which it is the best."""

    label: int
    first: int
    last: int


class Word(NamedTuple):
    """A word and when it was written down, in seconds: CTC may do so late, or early."""

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


def greedy(logits: np.ndarray, alphabet: Alphabet) -> str:
    """The text of the best path."""
    return alphabet.decode(spoken.label for spoken in best_path(logits))


def words(logits: np.ndarray, alphabet: Alphabet, frame_seconds: float) -> list[Word]:
    """The words of the best path."""
    found: list[Word] = []
    begins = True
    for label, first, last in best_path(logits):
        character = alphabet.decode([label])
        start, end = (round(n * frame_seconds, 3) for n in (first, last + 1))
        if character == " ":
            begins = True
        elif begins:
            found.append(Word(character, start, end))
            begins = False
        else:
            found[-1] = Word(found[-1].word + character, found[-1].start, end)
    return found


class GreedyStream:
    """The text of the best path, piece by piece."""

    def __init__(self, alphabet: Alphabet):
        self._alphabet = alphabet
        self._last = BLANK

    def __call__(self, logits: np.ndarray) -> str:
        """What these frames add to the text."""
        if not len(logits):
            return ""
        path = logits.argmax(-1)
        before = np.concatenate([[self._last], path[:-1]])
        self._last = path[-1]
        return self._alphabet.decode(path[(path != before) & (path != BLANK)])
