"""Prefix beam search with a word n-gram model, by flashlight-text and KenLM."""

from pathlib import Path

import numpy as np

from .config import DecodeConfig
from .errors import SpeechError
from .ngram import words_of
from .text import BLANK, Alphabet


class BeamSearch:
    """Finds the likeliest text of words that the language model knows."""

    def __init__(self, config: DecodeConfig, arpa: Path, alphabet: Alphabet):
        try:
            from flashlight.lib.text import decoder, dictionary
            from flashlight.lib.text.decoder.kenlm import KenLM
        except ImportError:
            raise SpeechError(
                "beam search needs `pip install flashlight-text`"
            ) from None
        self._words = [w for w in words_of(arpa) if set(w) <= set(alphabet.characters)]
        if not self._words:
            raise SpeechError(f"{arpa}: none of its words is in the model's characters")
        numbers = dictionary.Dictionary()
        for word in self._words:
            numbers.add_entry(word)
        model = KenLM(str(arpa), numbers)
        start = model.start(False)
        space = int(alphabet.encode(" ")[0])
        trie = decoder.Trie(alphabet.labels, space)
        for number, word in enumerate(self._words):
            _, score = model.score(start, number)
            trie.insert(alphabet.encode(word).tolist(), number, score)
        trie.smear(decoder.SmearingMode.MAX)
        options = decoder.LexiconDecoderOptions(
            beam_size=config.beam,
            beam_size_token=alphabet.labels,
            beam_threshold=50.0,
            lm_weight=config.lm_weight,
            word_score=config.word_score,
            unk_score=-np.inf,
            sil_score=0.0,
            log_add=True,
            criterion_type=decoder.CriterionType.CTC,
        )
        self._decoder = decoder.LexiconDecoder(
            options, trie, model, space, BLANK, -1, [], False
        )

    def __call__(self, logits: np.ndarray) -> str:
        """The text of logits [time, labels]."""
        if not len(logits):
            return ""
        scores = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
        scores = np.ascontiguousarray(scores, np.float32)
        best, *_ = self._decoder.decode(scores.ctypes.data, *scores.shape)
        return " ".join(self._words[number] for number in best.words if number >= 0)
