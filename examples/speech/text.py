"""Characters and their label numbers. Label 0 is the CTC blank."""

from collections.abc import Iterable

import numpy as np

BLANK = 0
CHARACTERS = " 'abcdefghijklmnopqrstuvwxyz"
LABELS = len(CHARACTERS) + 1  # with the blank

_LABEL_OF = {character: label for label, character in enumerate(CHARACTERS, start=1)}


def encode(text: str) -> np.ndarray:
    """Labels of `text`, int32. A character outside CHARACTERS is an error."""
    unknown = sorted(set(text) - set(_LABEL_OF))
    if unknown:
        raise ValueError(f"text {text!r} has characters without a label: {unknown}")
    return np.array([_LABEL_OF[character] for character in text], np.int32)


def to_text(labels: Iterable[int]) -> str:
    """The characters of labels that are not blank."""
    return "".join(CHARACTERS[label - 1] for label in labels)
