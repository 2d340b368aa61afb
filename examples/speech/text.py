"""Texts as they are compared, and as labels. Label 0 is the blank of CTC."""

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from .errors import SpeechError

BLANK = 0


def normalise(text: str) -> str:
    """Lower case without accents and punctuation, one space between words.

    Letters that are no others with an accent (æ, ø), and digits, stay: nobody can say
    how they were spoken. ß is ss.
    """
    text = unicodedata.normalize("NFKD", text.replace("’", "'")).casefold()
    text = "".join(c for c in text if not unicodedata.combining(c))
    kept = (c if c == "'" or not _is_mark(c) else " " for c in text)
    return " ".join("".join(kept).split())


def _is_mark(character: str) -> bool:
    return unicodedata.category(character)[0] in "PSZC"  # punctuation, symbol, ...


class Vocabulary(Protocol):
    """What can be written, label by label: `Alphabet`, or `subwords.Subwords`."""

    @property
    def pieces(self) -> tuple[str, ...]:
        """The text of each label, from label 1 on."""
        ...

    @property
    def space(self) -> int | None:
        """The label between words; None where the first label of a word has it."""
        ...

    def encode(self, text: str) -> np.ndarray:
        """Labels of `text`, int32; a ValueError if there are none for it."""
        ...

    def decode(self, labels: Iterable[int], *, goes_on: bool = False) -> str:
        """The text of labels that are not blank, or by how much a text goes on."""
        ...


@dataclass(frozen=True)
class Alphabet:
    """The characters that can be written."""

    characters: str

    @property
    def labels(self) -> int:
        """How many, with the blank."""
        return len(self.characters) + 1

    @property
    def pieces(self) -> tuple[str, ...]:
        """The characters."""
        return tuple(self.characters)

    @property
    def space(self) -> int:
        """The label between words."""
        if " " not in self.characters:
            raise SpeechError("beam search needs a space among model.characters")
        return self.characters.index(" ") + 1

    def encode(self, text: str) -> np.ndarray:
        """Labels of `text`, int32."""
        if unknown := sorted(set(text) - set(self.characters)):
            raise ValueError(f"no label for {', '.join(map(repr, unknown))}")
        labels = [self.characters.index(character) + 1 for character in text]
        return np.array(labels, np.int32)

    def decode(self, labels: Iterable[int], *, goes_on: bool = False) -> str:
        """The characters of labels that are not blank."""
        return "".join(self.characters[label - 1] for label in labels)
