"""Random masks of a layer, drawn from a key: dropout, recurrent dropout, zoneout.

A mask depends on the key, the layer's number, the kind of mask and the shape, and on
nothing else: not on dtype, `jit`, or whether layers run in a loop.
"""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from prnn_jax._given.checks import check
from prnn_jax._given.statics import number

_DROPOUT, _RECURRENT, _ZONEOUT = range(3)


@dataclass(frozen=True)
class Noise:
    """How much is dropped, as shares from 0 to 1.

    Attributes:
      dropout: of what a layer hands on.
      recurrent_dropout: of h where it enters the product with w_hh.
      zoneout: of each state, how much keeps its old value.
    """

    dropout: float = 0.0
    recurrent_dropout: float = 0.0
    zoneout: tuple[float, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.dropout or self.recurrent_dropout or any(self.zoneout))

    def controls(
        self, key: Array | None, layer: int | Array, call: Any, x: Array, features: int
    ) -> dict:
        """recurrent_mask and zoneout of a layer, as `prnn_jax.lstm` takes them.

        Args:
          key: None is evaluation: no recurrent mask, and zoneout's mean.
          layer: its number in a stack.
          call: of the layer, a `Call` or a `LinearCall`.
          x: its input.
          features: values of h of one direction, of all heads.
        """
        mask, zoneout = None, self.zoneout if any(self.zoneout) else None
        directions = 2 if call.bidirectional else 1
        if key is not None and self.recurrent_dropout:
            batch = x.shape[1:-1] if call.time_major else x.shape[:-2]
            shape = (*(2,) * (directions - 1), *batch, features)
            ones = jnp.ones(shape, x.dtype)
            mask = _drop(_key(key, layer, _RECURRENT), self.recurrent_dropout, ones)
        if key is not None and zoneout is not None:
            shape = (*x.shape[:-1], directions * features)
            zoneout_key = _key(key, layer, _ZONEOUT)
            zoneout = tuple(
                _bernoulli(jax.random.fold_in(zoneout_key, n), rate, shape).astype(
                    x.dtype
                )
                for n, rate in enumerate(zoneout)
            )
        return {"recurrent_mask": mask, "zoneout": zoneout}

    def drop(
        self,
        key: Array | None,
        layer: int | Array,
        y: Array,
        *,
        unless: bool | Array = False,
    ) -> Array:
        """What of y the layer hands on: all of it if `unless`."""
        if key is None or not self.dropout or unless is True:
            return y
        dropped = _drop(_key(key, layer, _DROPOUT), self.dropout, y)
        return dropped if unless is False else jnp.where(unless, y, dropped)


def check_noise(
    op: str,
    call: Any,
    dropout: float = 0.0,
    recurrent_dropout: float = 0.0,
    zoneout: float | tuple[float, ...] = 0.0,
) -> Noise:
    """The rates of a layer, checked.

    Raises:
      ValueError: in the words of function `op`.
    """
    rates = {"dropout": dropout, "recurrent_dropout": recurrent_dropout}
    for name, rate in rates.items():
        rates[name] = rate = float(number(op, name, rate))
        check(0 <= rate < 1, f"{op}: {name} must be from 0 to below 1, got {rate}.")
    check(
        call.table.has_product or not recurrent_dropout,
        f"{op}: recurrent_dropout must be 0 for {call.table.described}, which has no "
        f"product in a step, got {recurrent_dropout}.",
    )
    states = call.table.states
    several = isinstance(zoneout, (tuple, list))
    each = tuple(zoneout) if several else (zoneout,) * states
    each = tuple(float(number(op, "zoneout", rate)) for rate in each)
    for rate in each:
        check(0 <= rate <= 1, f"{op}: zoneout must be from 0 to 1, got {rate}.")
    check(
        call.table.has_zoneout or not any(each),
        f"{op}: zoneout must be 0 for {call.table.described}, which has none, got "
        f"{zoneout}.",
    )
    check(
        len(each) == states,
        f"{op}: zoneout must be a number or a tuple of {states}, one for each state, "
        f"got {len(each)} values.",
    )
    return Noise(**rates, zoneout=each)


def _key(key: Array, layer: int | Array, kind: int) -> Array:
    return functools.reduce(jax.random.fold_in, (layer, kind), key)


def _bernoulli(key: Array, share: float, shape: tuple[int, ...]) -> Array:
    # As a float32, or the draw would be another one where JAX has 64 bits.
    return jax.random.bernoulli(key, np.float32(share), shape)


def _drop(key: Array, rate: float, x: Array) -> Array:
    """Zeros for some values of x, and the others as much larger."""
    keep = 1 - rate
    return jnp.where(_bernoulli(key, keep, x.shape), x / keep, 0)
