"""Prefix beam search with a word n-gram model, by flashlight-text and KenLM."""

from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np

from .config import DecodeConfig
from .decode import Word
from .errors import SpeechError
from .ngram import words_of
from .text import BLANK, Alphabet


def is_available() -> bool:
    """Whether flashlight-text is installed."""
    return find_spec("flashlight") is not None


class BeamSearch:
    """Finds the likeliest text of words that the language model knows."""

    def __init__(self, config: DecodeConfig, arpa: Path, alphabet: Alphabet):
        try:
            from flashlight.lib.text import decoder, dictionary
            from flashlight.lib.text.decoder.kenlm import KenLM
        except ImportError:
            raise SpeechError(
                "beam search needs `pip install flashlight-text`, which has wheels for "
                "Python 3.11 and 3.12 on x86-64"
            ) from None
        if not arpa.exists():
            raise SpeechError(f"{arpa}: there is no such language model")
        if " " not in alphabet.characters:
            raise SpeechError("beam search needs a space among model.characters")
        self._words = [w for w in words_of(arpa) if set(w) <= set(alphabet.characters)]
        if not self._words:
            raise SpeechError(f"{arpa}: none of its words is in the model's characters")
        numbers = dictionary.Dictionary()
        for word in self._words:
            numbers.add_entry(word)
        model = KenLM(str(arpa), numbers)
        start = model.start(False)
        self._space = int(alphabet.encode(" ")[0])
        trie = decoder.Trie(alphabet.labels, self._space)
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
            options, trie, model, self._space, BLANK, -1, [], False
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
