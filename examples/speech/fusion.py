"""What a word n-gram model says of the texts of a transducer's beam: shallow fusion.

A text is words with a space between each two, as a label of its own or, of subwords,
in the first label of a word. Beside the transducer's log-probability
it has lm_weight times the model's, to the base 10, and word_score for each word. As in
flashlight's search for CTC, a word that is not complete yet has what the best word that
begins like it has at the beginning of a text, and no other words can be written.

The tree of the words is arrays in the compiled program; of n-grams it asks KenLM, by a
callback, for those that a text ends a word with.
"""

from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .config import DecodeConfig
from .language_model import LanguageModel
from .text import BLANK

_ROOT = 0
_NONE = -1  # no such node, no word
_KEPT = 2**18  # answers of KenLM


class Place(NamedTuple):
    """Where in the model the texts are, each with any axes in front."""

    node: jax.Array  # [...] of the tree: the word that has begun
    history: jax.Array  # [..., words]: the last ones complete, _NONE in front of them


class Fusion:
    """Scores of a model for texts that grow label by label; a static argument."""

    def __init__(self, config: DecodeConfig, model: LanguageModel):
        self._options, self._model = config, model
        self._children, self._expected, self._word = _tree(model)
        self._answer = lru_cache(_KEPT)(self._ask)
        self._state = lru_cache(_KEPT)(self._state_after)

    def begin(self, shape: tuple[int, ...]) -> Place:
        """Before anything is written."""
        # One at least, which tells an empty text from one that ends with a space.
        history = jnp.full((*shape, max(1, self._model.order - 1)), _NONE, jnp.int32)
        return Place(jnp.full(shape, _ROOT, jnp.int32), history)

    def moves(self, place: Place) -> jax.Array:
        """What each label adds to a text's score, [..., labels]; 0 for BLANK."""
        child = jnp.asarray(self._children)[place.node]
        expected = jnp.asarray(self._expected)
        weight, before = self._options.lm_weight, expected[place.node][..., None]
        added = weight * (expected[child] - before)
        added = jnp.where(child == _NONE, -jnp.inf, added)
        added = added.at[..., BLANK].set(0.0)
        complete, _ = self._completed(place)
        if self._model.space is not None:
            return added.at[..., self._model.space].set(complete)
        first = jnp.asarray(self._children[_ROOT])
        follows = (first != _NONE) & (place.node != _ROOT)[..., None]
        return jnp.where(follows, complete[..., None] + weight * expected[first], added)

    def write(self, place: Place, label: jax.Array) -> Place:
        """With one label more, [...], of those that can be written, or BLANK."""
        child = jnp.asarray(self._children)[place.node, label]
        word = jnp.asarray(self._word)[place.node][..., None]
        if self._model.space is None:
            ends = (place.node != _ROOT) & (child == _NONE) & (label != BLANK)
            next_word = jnp.asarray(self._children)[_ROOT, label]
        else:
            ends, next_word = label == self._model.space, _ROOT
        history = jnp.concatenate([place.history[..., 1:], word], -1)
        stays = label == BLANK
        return Place(
            jnp.where(stays, place.node, jnp.where(ends, next_word, child)),
            jnp.where(ends[..., None], history, place.history),
        )

    def end(self, place: Place) -> jax.Array:
        """What the end of a text adds, [...]; -inf within a word or behind a space."""
        is_empty = (place.node == _ROOT) & (place.history[..., -1] == _NONE)
        _, nothing = self._model.kenlm.finish(self._model.kenlm.start(False))
        _, complete = self._completed(place)
        return jnp.where(is_empty, self._options.lm_weight * nothing, complete)

    def _completed(self, place: Place) -> tuple[jax.Array, jax.Array]:
        """What is added where the word is complete: if a space follows, or nothing."""
        word = jnp.asarray(self._word)[place.node]
        like = jax.ShapeDtypeStruct(word.shape, jnp.float32)
        scores = jax.pure_callback(self._answers, (like, like), place.history, word)
        before = jnp.asarray(self._expected)[place.node]
        weight, bonus = self._options.lm_weight, self._options.word_score
        followed, last = (
            jnp.where(word == _NONE, -jnp.inf, weight * (score - before) + bonus)
            for score in scores
        )
        return followed, last

    def _answers(self, history, word) -> tuple[np.ndarray, np.ndarray]:
        """KenLM's scores of words [...] behind their histories, and with the end."""
        history, word = np.asarray(history), np.asarray(word)
        followed, last = np.zeros((2, *word.shape), np.float32)
        for at in zip(*np.nonzero(word != _NONE), strict=True):
            answer = self._answer(tuple(history[at].tolist()), int(word[at]))
            followed[at], last[at] = answer
        return followed, last

    def _ask(self, history: tuple[int, ...], word: int) -> tuple[float, float]:
        state, score = self._model.kenlm.score(self._state(history), word)
        _, end = self._model.kenlm.finish(state)
        return score, score + end

    def _state_after(self, history: tuple[int, ...]):
        """An n-gram model remembers no more: not where a full history begins."""
        state = self._model.kenlm.start(False)
        for word in (word for word in history if word != _NONE):
            state, _ = self._model.kenlm.score(state, word)
        return state


def _tree(model: LanguageModel) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each node of the tree its children by label, its score, and its word."""
    nodes = {(): _ROOT}
    children, expected = [_no_children(model)], [0.0]
    words = [_NONE]
    for number, labels in enumerate(map(tuple, model.spelled.values())):
        for n in range(len(labels)):
            above, beginning = nodes[labels[:n]], labels[: n + 1]
            if beginning not in nodes:
                nodes[beginning] = children[above][labels[n]] = len(nodes)
                children.append(_no_children(model))
                expected.append(model.tree.search(beginning).max_score)
                words.append(_NONE)
        words[nodes[labels]] = number
    return np.array(children), np.float32(expected), np.int32(words)


def _no_children(model: LanguageModel) -> np.ndarray:
    return np.full(len(model.vocabulary.pieces) + 1, _NONE, np.int32)
