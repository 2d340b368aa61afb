"""Texts as they are compared, and characters as labels. Label 0 is the CTC blank."""

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

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


@dataclass(frozen=True)
class Alphabet:
    """The characters that can be written."""

    characters: str

    @property
    def labels(self) -> int:
        """How many, with the blank."""
        return len(self.characters) + 1

    def encode(self, text: str) -> np.ndarray:
        """Labels of `text`, int32."""
        if unknown := sorted(set(text) - set(self.characters)):
            raise ValueError(f"no label for {', '.join(map(repr, unknown))}")
        labels = [self.characters.index(character) + 1 for character in text]
        return np.array(labels, np.int32)

    def decode(self, labels: Iterable[int]) -> str:
        """The characters of labels that are not blank."""
        return "".join(self.characters[label - 1] for label in labels)
