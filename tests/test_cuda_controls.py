"""The CUDA engine: lengths, resets, masks, zoneout, heads. On a GPU, or emulated."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CONTROLS, Case
from emulated import EXCHANGES
from on_cuda import HAS_GPU, check
from support import assert_bitwise_equal

import prnn_jax
from prnn_jax._call.call import Call
from prnn_jax._call.controls import Controls
from prnn_jax._call.primals import Primals
from prnn_jax._engine import ffi

pytestmark = pytest.mark.skipif(
    not HAS_GPU and shutil.which("c++") is None, reason="needs c++"
)

WITHOUT_ZONEOUT = tuple(name for name in CONTROLS if name != "zoneout")


def controls_of(cell: str) -> tuple[str, ...]:
    """All that the cell's function takes."""
    return WITHOUT_ZONEOUT if cell == "slstm" else CONTROLS


@pytest.mark.cuda
@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(
    "cell",
    ["lstm", "lstm_peephole", "slstm", "gru", "gru_reset_before", "rnn_tanh_skip"],
)
def test_all_together(cuda, cell, dtype, exchange):
    """In one native call each way."""
    controls = controls_of(cell)
    case = Case(cell, 6, (4,), 37, bidirectional=True, state=True, controls=controls)
    cuda.use(exchange=exchange)
    check(case, dtype)
    cuda.expect(f"forward:{exchange}", f"backward:{exchange}")


# H of whole granules: whether values go through the output is the controls' affair.
def case_of(cell: str, *controls: str, **options) -> Case:
    return Case(cell, 5, (4,), 40, state=True, controls=controls, **options)


EACH = [
    case_of("lstm", "lengths"),
    case_of("lstm", "lengths", reverse=True),
    case_of("gru", "lengths", bidirectional=True),
    case_of("rnn_tanh", "lengths", bidirectional=True, reverse=True, time_major=True),
    case_of("lstm", "resets"),
    case_of("gru", "resets", "reset_to", reverse=True),
    case_of("slstm", "resets", "reset_to", time_major=True),
    case_of("lstm", "mask"),
    case_of("gru", "mask", bidirectional=True),
    case_of("lstm", "zoneout"),
    case_of("rnn_tanh", "zoneout", reverse=True),
    case_of("rnn_relu", "zoneout"),
    case_of("rnn_clipped_relu_skip", "zoneout", "mask", reverse=True, lean=True),
    # A row's steps more than one tile of rows has.
    Case("lstm", 4, (21,), 40, state=True, controls=WITHOUT_ZONEOUT),
    Case("lstm", 5, (2, 2), 13, heads=3, state=True, controls=CONTROLS),
    Case("slstm", 5, (3,), 16, heads=4, bidirectional=True, controls=WITHOUT_ZONEOUT),
    Case("gru", 5, (3,), 16, heads=2, state=True),
    Case("lstm", 5, (3,), 24, lean=True, state=True, controls=CONTROLS),
    Case("slstm", 5, (3,), 24, lean=True, reverse=True, controls=WITHOUT_ZONEOUT),
    Case("gru", 5, (3,), 24, lean=True, bidirectional=True, controls=CONTROLS),
    Case("gru_reset_before", 5, (3,), 24, lean=True, reverse=True, controls=CONTROLS),
]


@pytest.mark.cuda
@pytest.mark.parametrize("case", EACH, ids=str)
def test_each(cuda, case):
    cuda.use(exchange="grid")
    check(case, "bfloat16")
    cuda.expect("forward:grid", "backward:grid")


@pytest.mark.cuda
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_full_lengths_change_nothing(cuda, exchange):
    """To the bit; lengths of 0 leave the state, and y is zero."""
    case = Case("lstm", 4, (3,), 40, state=True)
    arrays = case.inputs("bfloat16")
    params = prnn_jax.Params(*(arrays[n] for n in ("w_ih", "w_hh", "b_ih", "b_hh")))
    state_0 = arrays["h_0"], arrays["c_0"]

    @jax.jit
    def run(lengths):
        return prnn_jax.lstm(
            arrays["x"], params, state_0, lengths=lengths, implementation="native"
        )

    cuda.use(exchange=exchange)
    assert_bitwise_equal(run(jnp.full(3, 4)), run(None))
    y, state = run(jnp.zeros(3, jnp.int32))
    np.testing.assert_array_equal(y, np.zeros_like(y))
    assert_bitwise_equal(state, state_0)
    y, _ = run(jnp.array([1, 0, 2]))
    np.testing.assert_array_equal(y[0, 1:], np.zeros_like(y[0, 1:]))
    assert_bitwise_equal(y[0, 0], run(None)[0][0, 0])


@pytest.mark.cuda
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_nan_in_the_padding_reaches_nothing(cuda, exchange):
    """Neither from a_x, which the engine reads, nor from the cotangents."""
    lengths, time, hidden = np.array([2, 0, 5, 3]), 5, 40
    random = np.random.default_rng(3)
    counts = np.arange(time)[None, :, None] < lengths[:, None, None]

    def array(*shape):
        return jnp.asarray(random.standard_normal(shape) / 4, jnp.bfloat16)

    a_x, dy = array(4, time, 3 * hidden), array(4, time, hidden)
    w_hh, dh = array(hidden, 3 * hidden), array(4, hidden)

    @jax.jit
    def run(a_x, dy):
        out, vjp = jax.vjp(
            lambda a_x, w_hh: prnn_jax.recurrence(
                "gru", a_x, w_hh, lengths=lengths, implementation="native"
            ),
            a_x,
            w_hh,
        )
        return out, vjp((dy, dh))

    cuda.use(exchange=exchange)
    clean = run(jnp.where(counts, a_x, 0), jnp.where(counts, dy, 0))
    spoilt = run(jnp.where(counts, a_x, jnp.nan), jnp.where(counts, dy, jnp.nan))
    assert_bitwise_equal(spoilt, clean)
    cuda.expect(*[f"forward:{exchange}", f"backward:{exchange}"] * 2)


@pytest.mark.cuda
def test_nan_in_the_mask_of_a_row_of_no_steps(cuda):
    lengths, random = np.array([3, 0]), np.random.default_rng(4)
    shapes = (2, 3, 40), (40, 40), (2, 40)
    a_x, w_hh, h_0 = (
        jnp.asarray(random.standard_normal(s) / 4, jnp.bfloat16) for s in shapes
    )

    @jax.jit
    def gradient(number):
        mask = jnp.ones((2, 40), jnp.bfloat16).at[1].set(number)

        def last(h_0):
            return prnn_jax.recurrence(
                "rnn",
                a_x,
                w_hh,
                h_0,
                lengths=lengths,
                recurrent_mask=mask,
                implementation="native",
            )[1]

        return jax.vjp(last, h_0)[1](jnp.ones_like(h_0))[0]

    cuda.use(exchange="grid")
    assert_bitwise_equal(gradient(jnp.nan), gradient(1))
    assert (np.asarray(gradient(jnp.nan)[1], np.float32) == 1).all()
    cuda.expect(*["forward:grid", "backward:grid"] * 3)


@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn_relu"])
def test_no_steps(emulated, cell):
    """A program may find at run time that there are none: states are handed on."""
    call = Call(cell, save="all")
    hidden, gates, states = 24, call.table.gates, call.table.states
    state = tuple(jnp.full((3, 1, hidden), 1.0 + n) for n in range(states))

    def sequence(values):
        return jnp.zeros((3, 0, 1, values * hidden))

    controls = Controls(resets=jnp.zeros((3, 0, 1, 1), bool), reset_to=state)
    w_hh = jnp.ones((1, hidden, gates * hidden))
    b_hh = jnp.ones((1, gates * hidden))

    @jax.jit
    def run(state):
        count = call.table.per_unit * hidden
        own = jnp.ones((1, count)) if count else None
        primals = Primals(sequence(gates), w_hh, b_hh, state, controls, own)
        _, state_n, saved = ffi._forward_native(call, primals, platform="cuda")
        kept, cotangents = (sequence(1), saved), (sequence(1), state)
        gradients = ffi._backward_native(
            call, primals, kept, cotangents, platform="cuda"
        )
        return state_n, gradients[2:4]

    state_n, (dstate_0, dreset_to) = run(state)
    assert_bitwise_equal((state_n, dstate_0), (state, state))
    assert_bitwise_equal(dreset_to, jax.tree.map(jnp.zeros_like, state))
    assert emulated.ran == []  # nothing is planned or launched
