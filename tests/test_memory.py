"""Memory: what the engine writes and reads, and what a program keeps.

A native call's results are buffers that XLA does not clear. Here they are donated
arrays full of NaN: a value that the engine reads before it has written it, or that it
leaves unwritten, shows.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import SMALL, Case
from support import assert_bitwise_equal

from prnn_jax._call.call import Call
from prnn_jax._call.controls import NONE
from prnn_jax._call.primals import Input, Primals
from prnn_jax._engine import ffi, workspaces

CASES = [
    *SMALL,
    Case("lstm", 3, (1,), 1),
    Case("lstm", 3, (5,), 17, bidirectional=True, time_major=True),
    Case("gru", 3, (2,), 33, bidirectional=True, reverse=True),
    Case("gru_reset_before", 3, (4,), 37, bidirectional=True),
    Case("gru_reset_before", 3, (2,), 385),
    Case("rnn_tanh_skip", 3, (2,), 65, time_major=True),
    Case("lstm", 3, (2,), 385),
]


def random_like(shapes):
    random = np.random.default_rng(17)
    return jax.tree.map(
        lambda s: (0.3 * random.standard_normal(s.shape)).astype(np.float32), shapes
    )


@pytest.fixture
def native_calls(monkeypatch):
    """The native calls of a case as functions of arrays, and random arrays for them.

    They return all that the engine writes, also its workspace.
    """
    written = []
    ffi_call = jax.ffi.ffi_call

    def spy(*args, **options):
        def run(*operands, **attributes):
            outputs = ffi_call(*args, **options)(*operands, **attributes)
            written[:] = outputs
            return outputs

        return run

    monkeypatch.setattr(jax.ffi, "ffi_call", spy)

    def calls_of(case: Case):
        options = case.table.options
        call = Call(
            case.table.engine,
            reverse=case.reverse,
            bidirectional=case.bidirectional,
            time_major=case.time_major,
            save="all",
            skip=options.get("skip", 0.0),
            cap=options.get("cap", np.inf),
        )
        (rows,), gates, groups = case.batch, case.table.gates, case.groups
        order = (case.time, rows) if case.time_major else (rows, case.time)
        state = jax.ShapeDtypeStruct((rows, groups, case.hidden), "float32")
        states = (state,) * case.table.states

        def sequence(values):
            shape = (*order, groups, values * case.hidden)
            return jax.ShapeDtypeStruct(shape, "float32")

        w_hh = jax.ShapeDtypeStruct(
            (groups, case.hidden, gates * case.hidden), "float32"
        )
        b_hh = jax.ShapeDtypeStruct((groups, gates * case.hidden), "float32")
        x = jax.ShapeDtypeStruct((*order, 7), "float32")
        w_ih = jax.ShapeDtypeStruct((7, groups, gates * case.hidden), "float32")
        arguments = random_like((sequence(gates), w_hh, b_hh, states))
        made_of = random_like(Input(x, w_ih, b_hh))

        count = call.table.per_unit * case.hidden
        own = jnp.ones((groups, count), "float32") if count else None

        def forward(*args):
            ffi._forward_native(call, Primals(*args, NONE, own))
            return tuple(written)

        def backward(w_hh, state_0, kept, cotangents):
            primals = Primals(y, w_hh, b_hh, state_0, NONE, own)
            ffi._backward_native(call, primals, kept, cotangents)
            return tuple(written)

        y, _, saved = ffi._forward_native(call, Primals(*arguments, NONE, own))
        cotangents = random_like((sequence(1), states))
        of_backward = (arguments[1], arguments[3], (y, saved), cotangents)
        return {
            "forward": (forward, arguments),
            "backward": (backward, of_backward),
            "layer": (forward, (made_of, *arguments[1:])),
        }

    return calls_of


def run_over(function, arguments, value: float):
    """The results of a native call, whose buffers are full of `value` before."""
    shapes = jax.eval_shape(function, *arguments)
    before = tuple(jnp.full(shape.shape, value, shape.dtype) for shape in shapes)
    places = [buffer.unsafe_buffer_pointer() for buffer in before]

    @functools.partial(jax.jit, donate_argnums=0, keep_unused=True)
    def run(before, arguments):
        del before
        return function(*arguments)

    after = run(before, arguments)
    used = [buffer.unsafe_buffer_pointer() for buffer in after]
    assert sorted(used) == sorted(places), "not written into the donated buffers"
    return after


@pytest.mark.parametrize("direction", ["forward", "layer", "backward"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_was_in_memory_does_not_matter(case, direction, native_calls):
    function, arguments = native_calls(case)[direction]
    *over_zeros, _ = run_over(function, arguments, 0.0)
    *over_nans, _ = run_over(function, arguments, np.nan)
    for result in over_nans:
        assert np.isfinite(result).all(), "not written whole"
    assert_bitwise_equal(over_nans, over_zeros)


def sequence_sizes(text: str) -> set[int]:
    """Last sizes of the rank 4 results of the forward call in a lowered program."""
    (line,) = (
        line for line in text.splitlines() if "custom_call @prnn_forward" in line
    )
    _, results = line.rsplit("->", 1)
    shapes = [part.split("xf32>")[0] for part in results.split("tensor<")[1:]]
    return {int(s.split("x")[-1]) for s in shapes if s.count("x") == 3}


@pytest.mark.parametrize("case", SMALL, ids=str)
def test_inference_writes_no_reserve(case):
    inference = case.forward().lower(case.inputs()).as_text()
    training = case.gradient().lower(case.inputs(), case.cotangents()).as_text()
    saved = {
        "lstm": 5,
        "lstm_general": 5,
        "lstm_peephole": 5,
        "slstm": 8,
        "gru": 4,
        "gru_general": 4,
        "gru_reset_before": 3,
    }.get(case.cell, 0)
    assert sequence_sizes(inference) == {9}
    assert sequence_sizes(training) == {9, saved * 9} - {0}


def test_programs_need_the_memory_they_should():
    case = Case("lstm", 200, (8,), 32, 16)
    y = 4 * 200 * 8 * 32  # bytes
    forward = case.forward().lower(case.inputs()).compile().memory_analysis()
    gradient = (
        case.gradient().lower(case.inputs(), case.cotangents()).compile()
    ).memory_analysis()
    # Packed weights, the steps that are projected at a time, and so on are small beside
    # the sequences.
    small = y / 2
    assert forward.output_size_in_bytes <= y + small
    assert forward.temp_size_in_bytes <= small  # no a_x
    # da_x, y and saved values, and once more da_x in another order.
    assert 5 * y <= gradient.temp_size_in_bytes <= (4 + 1 + 5 + 4) * y + small


def test_a_workspace_too_small_is_refused(monkeypatch):
    asked = workspaces.cpu_floats
    monkeypatch.setattr(
        workspaces, "cpu_floats", lambda *args, **kwargs: asked(*args, **kwargs) - 1
    )
    # Sizes of no other test, lest a program compiled before be used.
    case = Case("lstm", 3, (2,), 11, 3)
    error = jax.errors.JaxRuntimeError
    with pytest.raises(error, match=r"prnn_jax: .* bytes of workspace"):
        jax.block_until_ready(case.forward("native")(case.inputs()))
