"""import_onnx: the ONNX standard's own tests of its recurrent operators.

Their weights are inputs of the graph; they become constants of it, as in a file of a
trained model. Expected values are the standard's.
"""

import functools
import importlib
import unittest.mock
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from onnx_support import model_of, onnx, value

from prnn_jax.convert import import_onnx


class Case(NamedTuple):
    """A node, the arrays that go into it, and those that come out."""

    node: "onnx.NodeProto"
    inputs: list
    outputs: list


INPUTS = "X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P"
WEIGHTS = "W", "R", "B", "P"
NAMES = [
    *(f"gru_{n}" for n in ("defaults", "with_initial_bias", "seq_length")),
    *(f"gru_{n}" for n in ("batchwise", "reverse", "bidirectional")),
    *(f"lstm_{n}" for n in ("defaults", "with_initial_bias", "with_peepholes")),
    *(f"lstm_{n}" for n in ("batchwise", "reverse", "bidirectional")),
    *(f"simple_rnn_{n}" for n in ("defaults", "with_initial_bias", "batchwise")),
    *(f"simple_rnn_{n}" for n in ("reverse", "bidirectional")),
    "rnn_seq_length",
]


@functools.cache
def cases() -> dict[str, Case]:
    """What the standard's modules say is to be expected, by the names of its cases."""
    found = {}

    def expect(node, inputs, outputs, name, **_):
        found[name.removeprefix("test_")] = Case(node, inputs, outputs)

    package = pytest.importorskip("onnx.backend.test.case.node")
    with unittest.mock.patch.object(package, "expect", expect):
        for module in ("gru", "lstm", "rnn"):
            importlib.reload(importlib.import_module(f"{package.__name__}.{module}"))
    return found


def test_every_case_of_the_standard_is_here():
    assert set(cases()) <= set(NAMES)  # what is new is to be added


@pytest.mark.parametrize("name", NAMES)
def test_what_the_standard_expects(name):
    if name not in cases():
        pytest.skip(f"onnx {onnx.__version__} does not have it")
    node, inputs, outputs = cases()[name]
    role = dict(zip(INPUTS, node.input, strict=False))
    given = dict(zip(filter(None, node.input), inputs, strict=True))
    constant = {role[w]: given[role[w]] for w in WEIGHTS if role.get(w)}
    variable = [value(n, *a.shape) for n, a in given.items() if n not in constant]
    model = model_of([node], constant, variable[1:], next(filter(None, node.output)))

    net = import_onnx(model)
    batch_first = not net.time_major
    states = [given[role[s]] for s in ("initial_h", "initial_c") if role.get(s)]
    states = [jnp.asarray(s[0]) for s in states]
    state_0 = states and [tuple(states) if net.cell == "lstm" else states[0]]
    options = {"lengths": given[n]} if (n := role.get("sequence_lens")) else {}
    y, (last,) = net(jnp.asarray(given[role["X"]]), state_0 or None, **options)

    y = jnp.moveaxis(y, 1, 0) if batch_first else y
    directions = 2 if net.bidirectional else 1
    y = jnp.moveaxis(y.reshape(*y.shape[:2], directions, -1), 2, 1)
    last = [s if net.bidirectional else s[None] for s in jax.tree.leaves(last)]
    got = dict(zip(("Y", "Y_h", "Y_c"), [y, *last], strict=False))
    if batch_first:
        got = {n: jnp.moveaxis(a, -2, 0) for n, a in got.items()}
    names = [n for n, o in zip(("Y", "Y_h", "Y_c"), node.output, strict=False) if o]
    for key, wanted in zip(names, outputs, strict=True):
        assert got[key].shape == wanted.shape
        np.testing.assert_allclose(got[key], wanted, rtol=0, atol=1e-6, err_msg=key)
