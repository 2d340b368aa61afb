"""Calls that are right but for one thing, and the error that each must raise."""

import re

import jax.numpy as jnp
import pytest

from prnn_jax import Params

INPUT, H = 5, 8
X = (2, 7, INPUT)
STATE = (2, H)
TWO = (2,)


def zeros(*shape, dtype="float32"):
    return jnp.zeros(shape, dtype)


def params(gates=4, lead=(), **changes) -> Params:
    wide = gates * H
    arrays = {
        "w_ih": zeros(*lead, INPUT, wide),
        "w_hh": zeros(*lead, H, wide),
        "b_ih": zeros(*lead, wide),
        "b_hh": zeros(*lead, wide),
    }
    return Params(**(arrays | changes))


def raises(*parts):
    """A ValueError whose message has all parts, in order."""
    return pytest.raises(ValueError, match=".*".join(map(re.escape, parts)))
