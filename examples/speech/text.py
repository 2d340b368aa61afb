"""Texts as they are compared, and as labels. Label 0 is the blank of CTC."""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np

from .errors import SpeechError

BLANK = 0


def normalise(text: str, characters: str = "") -> str:
    """Lower case without punctuation, one space between words.

    Accents and what formats a text stay where `characters` have them, such as й or é,
    and are left out where they have not. What makes another letter of one, as が and
    Hindi's marks do, stays in any case. So do letters that are no others with an accent
    (æ, ø), and digits: nobody can say how they were spoken. ß is ss.
    """
    text = _QUOTED.sub(r" \1 ", text).translate(_APOSTROPHES)
    text = unicodedata.normalize("NFKD", text).casefold()
    text = unicodedata.normalize("NFC", text)
    return " ".join("".join(_kept(c, characters) for c in text).split())


# An apostrophe within or behind a word is the same character as the end of a quotation.
_QUOTED = re.compile(r"‘(.*?)’(?!\w)")
_APOSTROPHES = str.maketrans("’ʼ´", "'''")
_SPACE_OF_NO_WIDTH = "\u200b"


@lru_cache(4096)
def _kept(character: str, characters: str) -> str:
    kind = unicodedata.category(character)
    if kind == "Cf" and character != _SPACE_OF_NO_WIDTH:  # soft hyphens, joiners, ...
        return character if character in characters else ""
    if kind[0] in "PSZC" and character != "'":  # punctuation, symbol, ...
        return " "
    if character in characters:
        return character
    parts = [
        part
        for part in unicodedata.normalize("NFD", character)
        if part in characters or not _is_accent(part)
    ]
    whole = all(part in characters for part in parts)
    return "".join(parts) if whole else unicodedata.normalize("NFC", "".join(parts))


def _is_accent(character: str) -> bool:
    """Not what Indic scripts, kana and Thai have for sounds of their own."""
    combining = unicodedata.combining(character)
    return combining > 0 and not (7 <= combining <= 9 or 100 <= combining < 200)


class Vocabulary(Protocol):
    """What can be written, label by label: `Alphabet`, or `subwords.Subwords`."""

    @property
    def characters(self) -> str:
        """What texts may be made of."""
        ...

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
        joined = "".join(self.characters[label - 1] for label in labels)
        return joined if goes_on else joined.removeprefix(" ")
