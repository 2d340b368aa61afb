"""A word n-gram model for the beam searches: KenLM's, by flashlight-text."""

from importlib.util import find_spec
from pathlib import Path

from .errors import SpeechError
from .ngram import order_of, words_of
from .text import Alphabet


def is_available() -> bool:
    """Whether flashlight-text is installed."""
    return find_spec("flashlight") is not None


class LanguageModel:
    """The model, and a tree of its words, label by label.

    Attributes:
      alphabet: what can be written.
      order: words of the longest n-gram.
      words: those that can be written; a word's number is its place.
      kenlm: flashlight's `LM`; its scores are logarithms to the base 10.
      space: the label between words.
      tree: flashlight's `Trie`. A node's `max_score` is the best of the words below it,
        at the beginning of a text: what a search expects before a word is complete.
    """

    def __init__(self, arpa: Path, alphabet: Alphabet):
        try:
            from flashlight.lib.text import decoder, dictionary
            from flashlight.lib.text.decoder.kenlm import KenLM
        except ImportError:
            raise SpeechError(
                "beam search needs `pip install flashlight-text`, which has wheels for "
                "Python 3.11 and 3.12 on x86-64"
            ) from None
        if not arpa.is_file():
            raise SpeechError(f"{arpa}: there is no such language model")
        if " " not in alphabet.characters:
            raise SpeechError("beam search needs a space among model.characters")
        self.alphabet = alphabet
        try:
            self.order, words = order_of(arpa), words_of(arpa)
        except UnicodeDecodeError:
            self.order = 0
        if not self.order:
            raise SpeechError(f"{arpa}: is no language model in the ARPA format")
        self.words = [w for w in words if set(w) <= set(alphabet.characters)]
        if not self.words:
            raise SpeechError(f"{arpa}: none of its words is in the model's characters")
        numbers = dictionary.Dictionary()
        for word in self.words:
            numbers.add_entry(word)
        try:
            self.kenlm = KenLM(str(arpa), numbers)
        except RuntimeError as error:
            raise SpeechError(f"{arpa}: KenLM cannot read it: {error}") from None
        self.space = int(alphabet.encode(" ")[0])
        self.tree = decoder.Trie(alphabet.labels, self.space)
        start = self.kenlm.start(False)
        for number, word in enumerate(self.words):
            _, score = self.kenlm.score(start, number)
            self.tree.insert(alphabet.encode(word).tolist(), number, score)
        self.tree.smear(decoder.SmearingMode.MAX)
