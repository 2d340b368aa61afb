"""What a transducer writes: the best label again and again, or the best of some texts.

Either way gives labels [batch, time, symbols]: those that each output frame wrote, in
order, then BLANK. A frame writes no more than so many.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .decode import Writer, emitted
from .fusion import Fusion, Place
from .text import BLANK, Vocabulary
from .transducer import Transducer, Written


@dataclass(frozen=True)
class Greedy:
    """The likeliest label, until that is BLANK: then the next frame."""

    symbols: int

    def __call__(
        self, transducer: Transducer, heard: jax.Array, frames: jax.Array
    ) -> jax.Array:
        """Labels of heard [batch, time, joint_size], of which `frames` count."""
        written = transducer.begin(heard.shape[0])
        return self.go_on(transducer, written, heard, frames)[1]

    def go_on(
        self,
        transducer: Transducer,
        written: Written,
        heard: jax.Array,
        frames: jax.Array,
    ) -> tuple[Written, jax.Array]:
        """The same after what is written already; and what is written then."""

        def listen(written: Written, inputs) -> tuple[Written, jax.Array]:
            heard, number = inputs

            def write(loop):
                written, labels, n, writes = loop
                best = transducer.joint(heard, written.features).argmax(-1)
                label = jnp.where(writes, best, BLANK).astype(jnp.int32)
                writes = label != BLANK
                written = lax.cond(
                    writes.any(),
                    lambda: transducer.write(written, label),
                    lambda: written,
                )
                return written, labels.at[:, n].set(label), n + 1, writes

            def goes_on(loop):
                _, _, n, writes = loop
                return (n < self.symbols) & writes.any()

            nothing = jnp.full((heard.shape[0], self.symbols), BLANK, jnp.int32)
            begin = written, nothing, 0, number < frames
            written, labels, *_ = lax.while_loop(goes_on, write, begin)
            return written, labels

        inputs = heard.swapaxes(0, 1), jnp.arange(heard.shape[1])
        written, labels = lax.scan(listen, written, inputs)
        return written, labels.swapaxes(0, 1)


class _Texts(NamedTuple):
    """The best texts of each row so far, the best first; BLANK past their ends."""

    score: jax.Array  # [batch, beam], log-probability, with that of a language model
    labels: jax.Array  # [batch, beam, time]: no longer than one a frame
    when: jax.Array  # the same, the frame that wrote each
    length: jax.Array  # [batch, beam]
    waits: jax.Array  # [batch, beam]: has had its BLANK of this frame
    written: Written  # [batch, beam, ...]
    place: Place | None  # [batch, beam, ...], in the language model


@dataclass(frozen=True)
class Beam:
    """The likeliest text for its length, whichever of its labels which frame writes.

    In each frame all texts grow at once, each by a label or by its BLANK, after which
    it waits for the others; the best stay. Equal ones, by other paths, become one. In
    the end the log-probability per label counts, as in Graves 2012: short texts would
    be the likelier ones. With a beam of 1 this is `Greedy`.

    A language model's scores are added, and only its words are written. A text that
    ends within one is the best only if all do.
    """

    symbols: int
    beam: int
    fusion: Fusion | None = None

    def __call__(
        self, transducer: Transducer, heard: jax.Array, frames: jax.Array
    ) -> jax.Array:
        """Labels of heard [batch, time, joint_size], of which `frames` count."""
        batch, time, _ = heard.shape

        def listen(texts: _Texts, inputs) -> tuple[_Texts, None]:
            heard, number = inputs

            def grow(loop):
                texts, n = loop
                grown = self._grow(transducer, texts, heard, number, n < self.symbols)
                return grown, n + 1

            def goes_on(loop):
                texts, n = loop
                return (n <= self.symbols) & ~texts.waits.all()

            waits = jnp.broadcast_to((number >= frames)[:, None], texts.waits.shape)
            texts, _ = lax.while_loop(goes_on, grow, (texts._replace(waits=waits), 0))
            return texts, None

        shape = batch, self.beam
        nothing = jnp.full((*shape, time), BLANK, jnp.int32)
        texts = _Texts(
            score=jnp.full(shape, -jnp.inf).at[:, 0].set(0.0),
            labels=nothing,
            when=nothing,
            length=jnp.zeros(shape, jnp.int32),
            waits=jnp.zeros(shape, bool),
            written=_apart(transducer.begin(batch * self.beam), shape),
            place=self.fusion and self.fusion.begin(shape),
        )
        inputs = heard.swapaxes(0, 1), jnp.arange(time)
        texts, _ = lax.scan(listen, texts, inputs)
        return self._by_frame(texts)

    def _grow(self, transducer: Transducer, texts: _Texts, heard, number, may_write):
        """Each text by a label, but those that wait; the best of them all."""
        logits = transducer.joint(heard[:, None], texts.written.features)
        is_blank = jnp.arange(logits.shape[-1]) == BLANK
        has_room = may_write & (texts.length < texts.labels.shape[-1])
        moves = jnp.where(
            is_blank | has_room[..., None], jax.nn.log_softmax(logits), -jnp.inf
        )
        if self.fusion:
            moves += self.fusion.moves(texts.place)
        stays = jnp.where(is_blank, 0.0, -jnp.inf)
        moves = jnp.where(texts.waits[..., None], stays, moves)
        scores = (texts.score[..., None] + moves).reshape(len(heard), -1)
        score, chosen = lax.top_k(scores, self.beam)
        parent, label = jnp.divmod(chosen, logits.shape[-1])

        rows = jnp.arange(len(heard))[:, None]
        texts = jax.tree.map(lambda x: x[rows, parent], texts)
        writes = label != BLANK
        here = jnp.arange(texts.labels.shape[-1]) == texts.length[..., None]
        here &= writes[..., None]
        written = lax.cond(
            writes.any(),
            lambda: transducer.write(_flat(texts.written), label.reshape(-1)),
            lambda: _flat(texts.written),
        )
        texts = _Texts(
            score,
            jnp.where(here, label[..., None], texts.labels),
            jnp.where(here, number, texts.when),
            texts.length + writes,
            texts.waits | ~writes,
            _apart(written, label.shape),
            self.fusion and self.fusion.write(texts.place, label),
        )
        return texts._replace(score=_merged(texts))

    def _by_frame(self, texts: _Texts) -> jax.Array:
        """The labels of the best text, where they were written."""
        rows = jnp.arange(len(texts.score))
        score = texts.score
        if self.fusion:
            ended = score + self.fusion.end(texts.place)
            # Where none has an end, what there is is better than nothing.
            score = jnp.where((ended == -jnp.inf).all(-1, keepdims=True), score, ended)
        best = (score / jnp.maximum(texts.length, 1)).argmax(-1)
        labels, when, length = (
            x[rows, best] for x in (texts.labels, texts.when, texts.length)
        )
        time = labels.shape[-1]
        when = jnp.where(jnp.arange(time) < length[:, None], when, time)  # else dropped
        earlier = jnp.tril(jnp.ones((time, time), bool), -1)
        place = ((when[:, :, None] == when[:, None]) & earlier).sum(-1)
        by_frame = jnp.full((len(labels), time, self.symbols), BLANK, jnp.int32)
        return by_frame.at[rows[:, None], when, place].set(labels, mode="drop")


def _merged(texts: _Texts) -> jax.Array:
    """Scores, where equal texts are one: the first has the sum, the others are out."""
    same = (texts.labels[:, :, None] == texts.labels[:, None]).all(-1)
    same &= texts.waits[:, :, None] == texts.waits[:, None]
    of_all = jnp.where(same, texts.score[:, None], -jnp.inf)
    earlier = jnp.tril(jnp.ones(same.shape[1:], bool), -1)
    first = ~(same & earlier).any(-1)
    return jnp.where(first, jax.nn.logsumexp(of_all, -1), -jnp.inf)


def _flat(written: Any) -> Any:
    return jax.tree.map(lambda x: x.reshape(-1, x.shape[-1]), written)


def _apart(written: Any, shape: tuple[int, ...]) -> Any:
    return jax.tree.map(lambda x: x.reshape(*shape, -1), written)


class GreedyPieces:
    """The text of a stream as `Greedy` writes it, piece by piece.

    Args:
      go_on: `(written, heard [frames, joint_size], count) -> (written, labels)`, always
        of one shape, of which `count` frames count.
      written: before the first piece.
      frames: as many at a time.
    """

    def __init__(
        self,
        go_on: Callable[[Written, np.ndarray, int], tuple[Written, jax.Array]],
        written: Written,
        frames: int,
        vocabulary: Vocabulary,
    ):
        self._go_on, self._written = go_on, written
        self._frames, self._write = frames, Writer(vocabulary)

    def __call__(self, heard: np.ndarray) -> str:
        """What these frames [time, joint_size] add to the text."""
        text = ""
        for start in range(0, max(1, len(heard)), self._frames):
            piece = heard[start : start + self._frames]
            padded = np.zeros((self._frames, heard.shape[-1]), np.float32)
            padded[: len(piece)] = piece
            self._written, labels = self._go_on(self._written, padded, len(piece))
            text += self._write([one.label for one in emitted(np.asarray(labels))])
        return text
