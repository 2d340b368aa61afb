"""Native calls whose buffers do not fit each other or their attributes: errors.

As in a program that was exported by another version, or damaged since. A crash of the
process is what they guard against.
"""

import itertools
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from prnn_jax._call.call import Call
from prnn_jax._call.controls import Controls
from prnn_jax._call.primals import Input, Primals
from prnn_jax._engine import ffi, weight_products, workspaces

TIME, BATCH, GROUPS, HIDDEN, INPUTS = 3, 2, 2, 5, 4


@dataclass(frozen=True)
class NativeCall:
    """What XLA hands over: shapes of buffers, and attributes."""

    target: str
    results: tuple
    arguments: tuple
    attributes: dict

    def run(self) -> Any:
        arguments = [np.ones(a.shape, a.dtype) for a in self.arguments]
        call = jax.ffi.ffi_call(self.target, self.results)
        return jax.block_until_ready(call(*arguments, **self.attributes))


def sequence(values: int, **options) -> jax.ShapeDtypeStruct:
    rows = (TIME, BATCH) if options.get("time_major") else (BATCH, TIME)
    return jax.ShapeDtypeStruct((*rows, GROUPS, values * HIDDEN), jnp.float32)


def calls(name: str, call: Call, controlled: bool) -> NativeCall:
    """The one that `_engine.ffi` makes."""
    cell, gates = call.table, call.table.gates
    options = {"time_major": call.time_major}
    state = jnp.ones((BATCH, GROUPS, HIDDEN))
    states = (state,) * cell.states
    w_hh = jnp.ones((GROUPS, HIDDEN, gates * HIDDEN))
    b_hh = jnp.ones((GROUPS, gates * HIDDEN))
    y = jnp.ones(sequence(1, **options).shape)
    per_unit = None
    if cell.per_unit:
        per_unit = jnp.ones((GROUPS, cell.per_unit * HIDDEN))
    controls = Controls()
    if controlled:
        controls = Controls(
            lengths=jnp.ones((BATCH, GROUPS, 1), jnp.int32),
            resets=jnp.ones((*y.shape[:3], 1), bool),
            reset_to=states,
            mask=state,
            zoneout=jnp.ones(sequence(cell.states, **options).shape),
        )
    seen: list[NativeCall] = []
    real = jax.ffi.ffi_call

    def recording(target, results, **kwargs):
        def run(*arguments, **attributes):
            seen.append(NativeCall(target, tuple(results), arguments, attributes))
            return real(target, results, **kwargs)(*arguments, **attributes)

        return run

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.ffi, "ffi_call", recording)
        if name == "backward":
            values = call.saved(zoneout=controlled)
            saved = (jnp.ones(sequence(values, **options).shape),) if values else ()
            kept, cotangents = (y, saved), (y, states)
            primals = Primals(y, w_hh, b_hh, states, controls, per_unit)
            ffi._backward_native(call, primals, kept, cotangents)
        else:
            source: Any = jnp.ones(sequence(gates, **options).shape)
            if name == "layer":
                x = jnp.ones((*y.shape[:2], INPUTS))
                source = Input(x, jnp.ones((INPUTS, GROUPS, gates * HIDDEN)), b_hh)
            if name == "prepared":
                words = workspaces.prepacked_words(call, w_hh, INPUTS, int8=False)
                x = jnp.ones((*y.shape[:2], INPUTS))
                w_ih = jnp.ones((INPUTS, GROUPS, gates * HIDDEN))
                source = Input(x, w_ih, b_hh, jnp.ones(words, jnp.uint32))
            primals = Primals(source, w_hh, b_hh, states, controls, per_unit)
            ffi._forward_native(call, primals)
    (only,) = seen
    return only


def preparation(call: Call) -> NativeCall:
    gates = call.table.gates
    w_hh = jnp.ones((GROUPS, HIDDEN, gates * HIDDEN))
    b_hh = jnp.ones((GROUPS, gates * HIDDEN))
    words = workspaces.prepacked_words(call, w_hh, INPUTS, int8=False)
    return NativeCall(
        "prnn_prepare",
        jax.ShapeDtypeStruct((words,), jnp.uint32),
        (jnp.ones((INPUTS, GROUPS * gates * HIDDEN)), b_hh, w_hh, b_hh),
        {
            "call": call.attributes(w_hh.dtype, Controls()),
            "batch": 2,
            "time": 3,
            "int8": False,
        },
    )


def products() -> NativeCall:
    a, b, w = jnp.ones((7, 2, 3)), jnp.ones((7, 2, 5)), jnp.ones((4, 2, 5))
    seen = []
    real = jax.ffi.ffi_call

    def recording(target, results):
        def run(*arguments, **attributes):
            seen.append(NativeCall(target, tuple(results), arguments, attributes))
            return real(target, results)(*arguments, **attributes)

        return run

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.ffi, "ffi_call", recording)
        weight_products._native([(a, b)], [(b, w)])
    return seen[0]


def other_shapes(like) -> list:
    """Of an array: an axis longer, shorter or empty; one fewer, one more; a dtype."""
    shape, dtype = like.shape, like.dtype
    shapes = []
    for axis, size in enumerate(shape):
        for other in (size + 1, size - 1, 0):
            shapes.append((*shape[:axis], other, *shape[axis + 1 :]))
    shapes += [shape[1:], (int(np.prod(shape)),), (1, *shape)]
    out = [jax.ShapeDtypeStruct(s, dtype) for s in shapes if s != shape]
    other = jnp.int32 if dtype != jnp.int32 else jnp.float32
    return [*out, jax.ShapeDtypeStruct(shape, other)]


def damaged(call: NativeCall):
    """The call with one thing wrong; but no workspace, which may be larger.

    Of each array one other shape that is drawn.
    """
    random = np.random.default_rng(len(call.arguments))

    def other_shapes_drawn(like):
        others = other_shapes(like)
        return [others[random.integers(len(others))]]

    many = isinstance(call.results, tuple)
    results = call.results[:-1] if many and call.target != "prnn_prepare" else ()
    arguments = call.arguments
    for n, array in enumerate(arguments):
        for other in other_shapes_drawn(array):
            yield replace(call, arguments=(*arguments[:n], other, *arguments[n + 1 :]))
    for n, result in enumerate(results):
        for other in other_shapes_drawn(result):
            changed = (*call.results[:n], other, *call.results[n + 1 :])
            yield replace(call, results=changed)
    if call.target == "prnn_prepare":
        for other in other_shapes(call.results):
            if other.size > 0:  # XLA makes no call that has no results
                yield replace(call, results=other)
        return
    yield replace(call, arguments=arguments[:-1])
    yield replace(call, arguments=(*arguments, arguments[-1], arguments[-1]))
    yield replace(call, results=call.results[1:])
    yield replace(call, results=(*call.results, call.results[0]))
    workspace = call.results[-1]
    if workspace.size > 0:
        small = jax.ShapeDtypeStruct((workspace.size // 2,), workspace.dtype)
        yield replace(call, results=(*call.results[:-1], small))


def with_attributes(call: NativeCall):
    """The call with one attribute that does not fit the rest."""
    given = call.attributes.get("call", {})
    changed = [{n: not v} for n, v in given.items() if n.startswith("has_")]
    changed += [{"cell": "no_such"}, {"max_sms": -1}, {"max_sms": 1 << 40}]
    if call.target == "prnn_prepare":
        changed = [{"cell": "no_such"}]
    else:
        changed += [{"save": "some"}, {"is_stack": True}]
        if call.target == "prnn_forward":
            changed += [{"projects": not given["projects"]}]
        changed += [{"prepared": not given["prepared"]}]
        changed += [{"time_major": not given["time_major"]}]
    for change in changed:
        yield replace(call, attributes={**call.attributes, "call": {**given, **change}})


def assert_refused(call: NativeCall) -> None:
    # By the handler, or by XLA where it knows what the handler takes.
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"prnn_jax|Failed to decode"):
        call.run()


CALLS = [
    ("forward", Call("lstm", save="all"), False),
    ("forward", Call("rnn_relu", save="all", time_major=True), True),
    ("layer", Call("gru_reset_before"), True),
    ("prepared", Call("lstm"), False),
    ("backward", Call("lstm", save="all"), False),
    ("backward", Call("gru", save="all", time_major=True), True),
    ("forward", Call("lstm_peephole"), False),
    ("backward", Call("lstm_peephole", save="all"), True),
]


@pytest.mark.parametrize(("name", "call", "controlled"), CALLS)
def test_of_buffers_that_do_not_fit(name, call, controlled):
    whole = calls(name, call, controlled)
    whole.run()
    for wrong in itertools.chain(damaged(whole), with_attributes(whole)):
        assert_refused(wrong)


def test_of_a_projection_of_no_units():
    """Of which h would be what its memory held before."""

    def array(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    outputs, call = 3, Call("lstm_projected")
    states = array(BATCH, GROUPS, outputs), array(BATCH, GROUPS, 0)
    y = array(BATCH, TIME, GROUPS, outputs)
    weights = array(GROUPS, outputs, 0), array(GROUPS, 0), array(GROUPS, 0, outputs)
    arguments = (array(BATCH, TIME, GROUPS, 0), *weights, *states)
    attributes = {"call": call.attributes(jnp.dtype("float32"), Controls())}
    results = (y, *states, array(64))
    assert_refused(NativeCall("prnn_forward", results, arguments, attributes))


@pytest.mark.parametrize("cell", ["lstm", "gru_reset_before"])
def test_of_weights_to_prepare(cell):
    whole = preparation(Call(cell))
    whole.run()
    for wrong in itertools.chain(damaged(whole), with_attributes(whole)):
        assert_refused(wrong)
    for name, size in itertools.product(("batch", "time"), (0, -1, 1 << 31, 1 << 62)):
        sizes = {**whole.attributes, name: size}
        assert_refused(replace(whole, attributes=sizes))


def test_of_products():
    whole = products()
    whole.run()
    for wrong in damaged(whole):
        assert_refused(wrong)
    for kinds in ([], [1], [0, 1], [1] * 9, [1, 0, 0]):
        wrong = {"over_rows": np.array(kinds, np.int64)}
        assert_refused(replace(whole, attributes=wrong))


@pytest.mark.parametrize("seed", range(3))
def test_of_many_at_once(seed):
    """Sizes that are drawn, over and over: whatever comes, no access out of bounds."""
    random = np.random.default_rng(seed)
    whole = calls(*CALLS[seed])
    for _ in range(25):
        arguments, results = list(whole.arguments), list(whole.results)
        # Not the workspace, of which only the bytes count.
        for array, count in ((arguments, len(arguments)), (results, len(results) - 1)):
            for n in random.choice(count, 2, replace=False):
                others = other_shapes(array[n])
                array[n] = others[random.integers(len(others))]
        assert_refused(
            replace(whole, arguments=tuple(arguments), results=tuple(results))
        )
