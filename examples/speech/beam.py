"""Prefix beam search of CTC with a word n-gram model, by flashlight-text and KenLM."""

from itertools import pairwise

import numpy as np

from .config import DecodeConfig
from .decode import Word
from .language_model import LanguageModel
from .text import BLANK


class BeamSearch:
    """Finds the likeliest text of words that the language model knows."""

    def __init__(self, config: DecodeConfig, model: LanguageModel):
        from flashlight.lib.text import decoder

        options = decoder.LexiconDecoderOptions(
            beam_size=config.beam,
            beam_size_token=model.alphabet.labels,
            beam_threshold=50.0,
            lm_weight=config.lm_weight,
            word_score=config.word_score,
            unk_score=-np.inf,
            sil_score=0.0,
            log_add=True,
            criterion_type=decoder.CriterionType.CTC,
        )
        self._words, self._space = model.words, model.space
        self._decoder = decoder.LexiconDecoder(
            options, model.tree, model.kenlm, model.space, BLANK, -1, [], False
        )

    def __call__(self, logits: np.ndarray) -> str:
        """The text of logits [time, labels]."""
        return " ".join(word.word for word in self.words(logits, frame_seconds=1.0))

    def words(self, logits: np.ndarray, frame_seconds: float) -> list[Word]:
        """Its words, with their times in seconds."""
        if not len(logits):
            return []
        scores = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
        scores = np.ascontiguousarray(scores, np.float32)
        best, *_ = self._decoder.decode(scores.ctypes.data, *scores.shape)
        found: list[Word] = []
        start = None
        labels = best.tokens[:-1]  # with one before the first frame
        for frame, (last, label) in enumerate(pairwise(labels)):
            if label != last and label not in (BLANK, self._space):
                start = frame if start is None else start
            if (number := best.words[frame + 1]) >= 0:
                word, first = self._words[number], frame if start is None else start
                times = (round(n * frame_seconds, 3) for n in (first, frame + 1))
                found.append(Word(word, *times))
                start = None
        return found
