"""Subwords as labels, by SentencePiece: made of the training texts, or by others.

Label 0 is the blank, and the others are the subwords in their order, without those
that are no text: what stands for unknown text, beginnings and ends, single bytes. A
space is the ▁ that SentencePiece writes at the beginning of a word.
"""

import hashlib
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from . import text
from .config import ModelConfig, RunConfig
from .corpora import find_clips
from .errors import SpeechError
from .text import BLANK

VOCABULARY = "vocabulary.model"


@dataclass(frozen=True)
class Subwords:
    """A vocabulary of subwords.

    model: as a file of SentencePiece has it.
    others: characters that texts may have, besides those of its subwords.
    """

    model: bytes = field(repr=False)
    others: str = ""

    @property
    def characters(self) -> str:
        """What texts may be made of, though a subword of it may be missing."""
        return "".join(sorted({*self.others, *"".join(self.pieces)}))

    @property
    def pieces(self) -> tuple[str, ...]:
        """The text of each label, from label 1 on; a word begins with its space."""
        return _read(self.model).pieces

    @property
    def space(self) -> None:
        """There is no label between words."""

    @property
    def digest(self) -> np.ndarray:
        """By which a checkpoint knows its vocabulary, uint32 [8]."""
        return np.frombuffer(hashlib.sha256(self.model).digest(), np.uint32)

    def encode(self, text: str) -> np.ndarray:
        """Labels of `text`, int32."""
        processor, labels, _ = _read(self.model)
        numbers = processor.encode(text, out_type=int)
        found = labels[np.array(numbers, np.int32)]
        if not found.all():
            pieces = processor.encode(text, out_type=str)
            unknown = {p for p, label in zip(pieces, found, strict=True) if not label}
            raise ValueError(f"no label for {', '.join(map(repr, sorted(unknown)))}")
        return found

    def decode(self, labels: Iterable[int], *, goes_on: bool = False) -> str:
        """The text of labels that are not blank, or by how much a text goes on."""
        pieces = self.pieces
        joined = "".join(pieces[label - 1] for label in labels)
        return joined if goes_on else joined.removeprefix(" ")


class _Read(NamedTuple):
    processor: Any
    labels: np.ndarray  # of SentencePiece's numbers
    pieces: tuple[str, ...]


@lru_cache(8)
def _read(model: bytes) -> _Read:
    processor = _library().SentencePieceProcessor(model_proto=model)
    numbers = range(processor.get_piece_size())
    is_text = [
        not (
            processor.is_unknown(n)
            or processor.is_control(n)
            or processor.is_unused(n)
            or processor.is_byte(n)
        )
        for n in numbers
    ]
    labels = np.where(is_text, np.cumsum(is_text), BLANK).astype(np.int32)
    pieces = (processor.id_to_piece(n) for n in numbers if is_text[n])
    return _Read(processor, labels, tuple(p.replace("▁", " ") for p in pieces))


def read(file: Path, options: ModelConfig) -> Subwords:
    """A file of SentencePiece, which must have as many labels as the settings say."""
    try:
        found = Subwords(file.read_bytes(), options.characters)
    except OSError as error:
        raise SpeechError(
            f"{file}: the vocabulary cannot be read: {error.strerror}; a run keeps the "
            "one that it was trained with, and model.vocabulary_file names another's"
        ) from None
    try:
        size = len(found.pieces) + 1 if found.model else 1
    except RuntimeError:
        size = 1  # of no model
    if size == 1:
        raise SpeechError(f"{file}: is no model of SentencePiece")
    if size != options.vocabulary_size:
        raise SpeechError(
            f"{file}: has {size} labels, the blank among them, but "
            f"model.vocabulary_size is {options.vocabulary_size}: set it to {size}"
        )
    return found


def texts_of(config: RunConfig) -> list[str]:
    """The training texts that model.characters can write."""
    clips = find_clips(config.data.train)
    written = (clip.text for clip in clips if clip.text is not None)
    characters = config.model.characters
    texts = (text.normalise(each, characters) for each in written)
    return [t for t in texts if t and set(t) <= {" ", *characters}]


def train(texts: Sequence[str], options: ModelConfig) -> Subwords:
    """Subwords that the texts are made of, as many as the settings say.

    By byte pair encoding (Sennrich et al. 2016, arXiv:1508.07909) or a unigram language
    model (Kudo 2018, arXiv:1804.10959). Equal texts give equal subwords.
    """
    if not texts:
        raise SpeechError(
            "a vocabulary needs training texts, and none is of model.characters: got "
            f"{options.characters!r}"
        )
    model = io.BytesIO()
    try:
        _library().SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=model,
            model_type=options.vocabulary,
            vocab_size=options.vocabulary_size,
            character_coverage=1.0,  # model.characters say what is left out
            normalization_rule_name="identity",  # `text.normalise` has been there
            bos_id=-1,
            eos_id=-1,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise SpeechError(_in_our_words(str(error), options)) from None
    return Subwords(model.getvalue(), options.characters)


def shown(pieces: Iterable[str]) -> list[str]:
    """With a space that can be seen."""
    return [piece.replace(" ", "▁") for piece in pieces]


def expect_vocabulary(recogniser: Any) -> None:
    """Refuses a checkpoint whose labels are other subwords than its recogniser's."""
    if recogniser.subwords is None:
        return
    if (np.asarray(recogniser.subwords[...]) != recogniser.vocabulary.digest).any():
        raise SpeechError(
            f"{VOCABULARY} of the run is not the vocabulary that its checkpoint was "
            "trained with: put that one back, or train in another folder"
        )


def _in_our_words(message: str, options: ModelConfig) -> str:
    """SentencePiece's complaint, in the words of the settings."""
    size = options.vocabulary_size
    if most := re.search(r"too high.*<= (\d+)", message):
        bound = f"at most {most[1]}"
    elif least := re.search(r"required_chars\. \d+ vs (\d+)", message):
        bound = f"at least {least[1]}, all characters"
    else:
        return f"no vocabulary could be made of the training texts: {message}"
    return (
        f"expected model.vocabulary_size of {bound}, which is what the training texts "
        f"have for {options.vocabulary}, got {size}"
    )


def _library():
    try:
        import sentencepiece
    except ImportError:
        raise SpeechError(
            "subwords need `pip install sentencepiece`; model.vocabulary of characters "
            "needs nothing"
        ) from None
    return sentencepiece
