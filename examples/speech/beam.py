"""Prefix beam search of CTC with a word n-gram model, by flashlight-text and KenLM."""

from itertools import pairwise

import numpy as np

from .config import DecodeConfig
from .decode import Word
from .language_model import LanguageModel
from .text import BLANK

_NEVER = -1e4  # a log-probability far below all others


class BeamSearch:
    """Finds the likeliest text of words that the language model knows."""

    def __init__(self, config: DecodeConfig, model: LanguageModel):
        from flashlight.lib.text import decoder

        options = decoder.LexiconDecoderOptions(
            beam_size=config.beam,
            beam_size_token=len(model.vocabulary.pieces) + 1,
            beam_threshold=50.0,
            lm_weight=config.lm_weight,
            word_score=config.word_score,
            unk_score=-np.inf,
            sil_score=0.0,
            log_add=True,
            criterion_type=decoder.CriterionType.CTC,
        )
        self._words, self._separator = model.words, model.separator
        self._decoder = decoder.LexiconDecoder(
            options, model.tree, model.kenlm, model.separator, BLANK, -1, [], False
        )

    def __call__(self, logits: np.ndarray) -> str:
        """The text of logits [time, labels]."""
        return " ".join(word.word for word in self.words(logits, frame_seconds=1.0))

    def words(self, logits: np.ndarray, frame_seconds: float) -> list[Word]:
        """Its words, with their times in seconds."""
        if not len(logits):
            return []
        scores = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
        starts = np.arange(len(scores))
        if self._separator == scores.shape[-1]:  # it is no label of the network's
            scores = np.pad(scores, ((0, 0), (0, 1)), constant_values=_NEVER)
            starts = _changes(scores)
            scores = np.add.reduceat(scores, starts)
        ends = np.append(starts[1:], len(logits))
        scores = np.ascontiguousarray(scores, np.float32)
        best, *_ = self._decoder.decode(scores.ctypes.data, *scores.shape)
        found: list[Word] = []
        start = None
        labels = best.tokens[:-1]  # with one before the first frame
        for frame, (last, label) in enumerate(pairwise(labels)):
            if label != last and label not in (BLANK, self._separator):
                start = frame if start is None else start
            if (number := best.words[frame + 1]) >= 0:
                word, first = self._words[number], frame if start is None else start
                edges = int(starts[first]), int(ends[frame])
                times = (round(n * frame_seconds, 3) for n in edges)
                found.append(Word(word, *times))
                start = None
        return found


def _changes(scores: np.ndarray) -> np.ndarray:
    """The frames with which a blank, or another label than before, is the best.

    The decoder would take a word of one subword that lasts some frames for as many
    words; so these frames are one, for alignments that do not change within.
    """
    best = scores.argmax(-1)
    goes_on = (best[1:] == best[:-1]) & (best[1:] != BLANK)
    return np.flatnonzero(np.concatenate([[True], ~goes_on]))
