"""A word n-gram model for the beam searches: KenLM's, by flashlight-text."""

from importlib.util import find_spec
from pathlib import Path

from .errors import SpeechError
from .ngram import order_of, words_of
from .text import Vocabulary


def is_available() -> bool:
    """Whether flashlight-text is installed."""
    return find_spec("flashlight") is not None


class LanguageModel:
    """The model, and a tree of its words, label by label.

    Attributes:
      vocabulary: what can be written.
      order: words of the longest n-gram.
      words: those that can be written; a word's number is its place.
      unwritten: the others, which no search finds.
      spelled: their labels.
      kenlm: flashlight's `LM`; its scores are logarithms to the base 10.
      space: the label between words; None where the first label of a word has it.
      separator: what the tree takes for it, one label too many if there is none.
      tree: flashlight's `Trie`. A node's `max_score` is the best of the words below it,
        at the beginning of a text: what a search expects before a word is complete.
    """

    def __init__(self, arpa: Path, vocabulary: Vocabulary):
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
        self.vocabulary, self.space = vocabulary, vocabulary.space
        try:
            self.order, words = order_of(arpa), words_of(arpa)
        except UnicodeDecodeError:
            self.order = 0
        if not self.order:
            raise SpeechError(f"{arpa}: is no language model in the ARPA format")
        if not words:
            raise SpeechError(f"{arpa}: ends before the words of its \\1-grams")
        spelled = [(word, _spelled(word, vocabulary)) for word in words]
        self.spelled = {word: labels for word, labels in spelled if labels}
        self.words = list(self.spelled)
        self.unwritten = [word for word, labels in spelled if not labels]
        if self.space is None and not self._begins_words():
            raise SpeechError(
                "beam search needs subwords of which the first of each word, and no "
                "other, begins with a space (▁); those of model.vocabulary_file do not"
            )
        if not self.words:
            raise SpeechError(
                f"{arpa}: none of its words can be written: expected words of "
                f"model.characters, lower case, got {', '.join(words[:3])}, ..."
            )
        numbers = dictionary.Dictionary()
        for word in self.words:
            numbers.add_entry(word)
        try:
            self.kenlm = KenLM(str(arpa), numbers)
        except RuntimeError as error:
            raise SpeechError(f"{arpa}: KenLM cannot read it: {error}") from None
        # The search must have such a label; where there is none, it is one too many.
        labels = len(vocabulary.pieces) + 1
        self.separator = labels if self.space is None else self.space
        self.tree = decoder.Trie(labels + (self.space is None), self.separator)
        start = self.kenlm.start(False)
        for number, labels in enumerate(self.spelled.values()):
            _, score = self.kenlm.score(start, number)
            self.tree.insert(labels, number, score)
        self.tree.smear(decoder.SmearingMode.MAX)

    def _begins_words(self) -> bool:
        pieces = self.vocabulary.pieces
        return all(
            pieces[label - 1].rfind(" ") == (0 if n == 0 else -1)
            for labels in self.spelled.values()
            for n, label in enumerate(labels)
        )


def _spelled(word: str, vocabulary: Vocabulary) -> list[int]:
    """A word's labels; none if it cannot be written."""
    try:
        return vocabulary.encode(word).tolist()
    except ValueError:
        return []
