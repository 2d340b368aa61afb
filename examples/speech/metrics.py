"""Error rates by jiwer, with confidence intervals."""

from collections.abc import Sequence
from typing import NamedTuple

import jiwer
import numpy as np

_RESAMPLES = 1000


class Rate(NamedTuple):
    """Errors per character or word, and where the true rate is with 95 %."""

    rate: float
    low: float
    high: float

    def __str__(self):
        percent = [100 * value for value in self]
        return "{:.2f} % ({:.2f} to {:.2f})".format(*percent)


def character_error_rate(references: Sequence[str], texts: Sequence[str]) -> float:
    """Edits over all texts, per character of the references.

    Spaces count, but at the ends of a text.
    """
    return jiwer.process_characters(list(references), list(texts)).cer


def error_rates(references: Sequence[str], texts: Sequence[str]) -> tuple[Rate, Rate]:
    """Character and word error rate.

    The intervals are those of drawing as many utterances again and again from these
    (Bisani & Ney 2004): they know nothing of voices that are not among them.
    """
    characters = jiwer.process_characters(list(references), list(texts))
    words = jiwer.process_words(list(references), list(texts))
    return _rate(characters), _rate(words)


def _rate(output: jiwer.CharacterOutput | jiwer.WordOutput) -> Rate:
    errors = np.array([sum(map(_edits, chunks)) for chunks in output.alignments])
    lengths = np.array([len(reference) for reference in output.references])
    draws = np.random.default_rng(0).integers(
        len(lengths), size=(_RESAMPLES, len(lengths))
    )
    rates = errors[draws].sum(1) / np.maximum(1, lengths[draws].sum(1))
    low, high = np.percentile(rates, [2.5, 97.5])
    return Rate(errors.sum() / max(1, lengths.sum()), float(low), float(high))


def _edits(chunk: jiwer.AlignmentChunk) -> int:
    if chunk.type == "equal":
        return 0
    return max(
        chunk.ref_end_idx - chunk.ref_start_idx, chunk.hyp_end_idx - chunk.hyp_start_idx
    )
