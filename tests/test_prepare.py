"""Weights that are packed before the call: the same results, to the last bit."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CONTROLS, SMALL, Case
from support import Program, named, run_python

import prnn_jax
from prnn_jax._engine import ffi, input_projection

CASES = [
    Case("lstm", 7, (3,), 33, 5, state=True),
    Case("lstm", 1, (1,), 192, 192, state=True),  # as it lies in memory, if unprepared
    Case("lstm", 6, (1,), 300, 70),
    Case("lstm", 20, (17,), 64, 64),
    Case("lstm", 3, (2,), 513, 40),  # hidden-parallel
    Case("lstm", 12, (2,), 260, 1010, bidirectional=True),  # elsewhere, in turn
    Case("slstm", 20, (4,), 8, 6, heads=2, biases=()),
    Case("gru", 9, (1,), 129, 65, bidirectional=True, state=True),
    Case("gru", 5, (2, 3), 17, 3, time_major=True, controls=CONTROLS),
    Case("gru_reset_before", 5, (4,), 129, 20, reverse=True, controls=CONTROLS),
    Case("gru_reset_before", 1, (1,), 200, 20),
    Case("rnn_tanh_skip", 40, (2,), 65, 1, controls=("resets",)),
    Case("rnn_clipped_relu_skip", 1, (5,), 31, 9, biases=("b_ih",)),
]


#: Words of it, at the beginning of what is packed.
DESCRIPTION = 32


def assert_same_bits(ours, expected) -> None:
    for name, value in named(*expected).items():
        np.testing.assert_array_equal(
            np.asarray(named(*ours)[name]).view(np.uint8),
            np.asarray(value).view(np.uint8),
            err_msg=name,
        )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_same_bits(case, dtype, monkeypatch):
    monkeypatch.setattr(input_projection, "ROWS_PER_WEIGHT", 0)  # a_x is native
    arrays = case.inputs(dtype)
    run = case.forward()
    # Where sums are of pairs, they are not those of weights that are read unpacked.
    is_exact = dtype != "bfloat16" or not ffi.native.sums_pairs()
    expected = run(arrays if is_exact else case.prepared(arrays))
    for sizes in ((), (1, 1), (1, 100), (9, 100)):  # its own, and those of other calls
        assert_same_bits(run(case.prepared(arrays, *sizes)), expected)


@pytest.mark.parametrize("isa", ["avx512", "avx2", "neon", "portable"])
def test_each_instruction_set_has_its_own(isa):
    script = """
import test_prepare
test_prepare.input_projection.ROWS_PER_WEIGHT = 0
for case, dtype in zip(test_prepare.CASES, ("float32", "float16") * 9):
    arrays = case.inputs(dtype)
    ours = case.forward()(case.prepared(arrays, 1, 20))
    test_prepare.assert_same_bits(ours, case.forward()(arrays))
"""
    if not ffi.native.has_isa(isa):
        pytest.skip(f"this processor or build lacks {isa}")
    run_python(script, PRNN_CPU_ISA=isa)


# ---- they are used, where they are for the call ----


def other(case: Case) -> dict:
    """What was packed of other weights."""
    arrays = case.inputs()
    return {n: 0.5 * v if n[:2] in ("w_", "b_") else v for n, v in arrays.items()}


def replaced(case: Case, **options) -> np.ndarray:
    """Those weights, under the description of the case's own: they are read, if any."""
    own, others = (
        np.array(case.prepared(arrays, **options)["packed"])
        for arrays in (case.inputs(), other(case))
    )
    own[DESCRIPTION:] = others[DESCRIPTION:]
    return own


@pytest.mark.parametrize("time", [1, 7, 40])
@pytest.mark.parametrize("cell", ["lstm", "gru_reset_before"])
def test_they_are_what_is_read(cell, time):
    case = Case(cell, time, (2,), 33, 5, state=True)
    ours = case.forward()({**case.inputs(), "packed": replaced(case)})
    assert_same_bits(ours, case.forward()(other(case)))


CHANGES = {
    "smaller": lambda a: 0.5 * a,
    "trained": lambda a: a + jnp.asarray(0.25, a.dtype),
    "zeros": jnp.zeros_like,
}


@pytest.mark.parametrize("weights", [None, "int8"])
@pytest.mark.parametrize("names", [("w_hh", "w_ih"), ("w_hh",), ("w_ih",), ("b_ih",)])
@pytest.mark.parametrize("change", CHANGES)
def test_what_is_no_longer_the_parameters_is_not_read(change, names, weights):
    """As of an average, or an optimiser that leaves integers alone."""
    for case in (
        Case("lstm", 4, (1,), 33, 5, state=True),
        Case("gru", 4, (2,), 20, 7, bidirectional=True),
    ):
        for dtype in ("float32", "bfloat16"):
            arrays = case.prepared(case.inputs(dtype), 1, 4, weights=weights)
            changed = {n: CHANGES[change](jnp.asarray(arrays[n])) for n in names}
            if all((changed[n] == arrays[n]).all() for n in names):
                continue  # a bias of zeros, halved
            plain = {n: a for n, a in arrays.items() if n != "packed"} | changed
            ours = case.forward()(arrays | changed)
            assert_same_bits(ours, case.forward()(plain))


@pytest.mark.parametrize("word", range(DESCRIPTION))
def test_what_is_for_another_call_is_not_read(word):
    """Nor what is damaged: each word of cpu/prepacked.h's description is looked at."""
    case = Case("lstm", 7, (2,), 33, 5, state=True)
    whole = replaced(case)
    run, expected = case.forward(), case.forward()(case.inputs())
    for value in (whole[word] ^ 1, 0, 3, 255, 2**31 - 1, 2**32 - 1):
        packed = whole.copy()
        packed[word] = value
        if packed[word] != whole[word]:
            assert_same_bits(run({**case.inputs(), "packed": packed}), expected)


def test_calls_of_another_size_than_prepared_do_not_read_them():
    case, wider = Case("lstm", 7, (2,), 32, 5), Case("lstm", 7, (2,), 32, 6)
    arrays = {**wider.inputs(), "packed": case.prepared(case.inputs())["packed"]}
    assert_same_bits(wider.forward()(arrays), wider.forward()(wider.inputs()))


def test_the_program_does_nothing_else():
    # So large that XLA makes a_x of weights that are not prepared.
    case = Case("lstm", 2, (70,), 400, 400)
    assert Program.of(case.run, case.inputs()).count("dot") == 1
    program = Program.of(case.run, case.prepared(case.inputs()))
    assert (program.calls, program.count("dot")) == ((1, 0), 0)


# ---- inside programs ----


@pytest.mark.parametrize("case", SMALL, ids=str)
def test_without_jit(case):
    arrays = case.inputs()
    assert_same_bits(case.run(case.prepared(arrays)), case.run(arrays))


def test_prepared_inside_jit():
    case = CASES[0]

    @jax.jit
    def run(arrays):
        return case.run(case.prepared(arrays))

    assert_same_bits(run(case.inputs()), case.forward()(case.inputs()))


def test_vmap_over_data():
    case = Case("gru", 5, (2,), 33, 5, bidirectional=True)
    arrays = case.inputs()
    data = np.stack([arrays["x"], arrays["x"][::-1], 0 * arrays["x"]])

    def run(arrays, x):
        return case.run({**arrays, "x": x})

    def mapped(arrays):
        return jax.jit(jax.vmap(functools.partial(run, arrays)))

    packed = replaced(case)
    expected = mapped(other(case))(data)
    assert_same_bits(mapped({**arrays, "packed": packed})(data), expected)


@pytest.mark.parametrize("mapped", [("w_hh",), ("packed", "w_ih", "w_hh", "b_ih")])
def test_vmap_over_weights(mapped):
    case = Case("lstm", 5, (2,), 33, 5, biases=("b_ih",))
    arrays = case.inputs()
    names = [name for name in mapped if name in arrays]
    several = arrays | {n: np.stack([arrays[n], 2 * arrays[n]]) for n in names}
    with_packed = dict(several)
    if "packed" in mapped:
        prepare = jax.vmap(lambda w: case.prepared({**arrays, **w})["packed"])
        with_packed["packed"] = prepare({name: several[name] for name in names})
    else:
        with_packed["packed"] = case.prepared(arrays)["packed"]

    def run(arrays):
        axes = {name: 0 if name in mapped else None for name in arrays}
        return jax.jit(jax.vmap(case.run, (axes,)))(arrays)

    assert_same_bits(run(with_packed), run(several))


def test_derivatives():
    case = Case("lstm", 5, (2,), 33, 5, state=True)
    arrays = case.prepared(case.inputs())

    def loss(floats, packed):
        extra = {} if packed is None else {"packed": packed}
        y, state = case.run({**floats, **extra})
        return jnp.sum(jnp.sin(y)) + sum(jnp.sum(s * s) for s in state)

    packed = arrays.pop("packed")
    ours = jax.jit(jax.grad(loss))(arrays, packed)
    expected = jax.jit(jax.grad(loss))(arrays, None)
    for name in ("x", "h_0", "c_0"):
        np.testing.assert_array_equal(ours[name], expected[name])
    for name in ("w_ih", "w_hh", "b_ih", "b_hh"):
        assert np.any(np.asarray(expected[name]) != 0)
        np.testing.assert_array_equal(ours[name], 0)


def test_stream_in_a_loop():
    """A step at a time, as the chunks of a stream come."""
    case = Case("lstm", 9, (1,), 65, 12, state=True)
    arrays = case.inputs()
    prepared = prnn_jax.prepare("lstm", case.params(arrays), batch=1, time=1)
    x = jnp.asarray(arrays["x"])

    @jax.jit
    def run(prepared, state):
        def step(state, x):
            y, state = prnn_jax.lstm(x[:, None], prepared, state)
            return state, y[:, 0]

        return jax.lax.scan(step, state, x.swapaxes(0, 1))

    state, y = run(prepared, case.state_of(arrays))
    assert_same_bits((y.swapaxes(0, 1), state), case.forward()(arrays))


@pytest.mark.parametrize("count", [2, 9])  # from eight on, they run in a loop
def test_stack(count):
    case = Case("gru", 6, (2,), 20, 20)
    arrays = case.inputs()
    params = case.params(arrays)
    prepared = prnn_jax.prepare("gru", params, batch=2, time=6)

    def run(layer):
        layers = [layer, prnn_jax.Layer(layer)] * 5
        return prnn_jax.stack("gru", arrays["x"], layers[:count])

    assert_same_bits(run(prepared), run(params))


def test_eight_devices():
    script = """
import jax, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from test_prepare import Case, assert_same_bits, other, replaced

assert jax.device_count() == 8
case = Case("lstm", 6, (16,), 32, 5, heads=2)
arrays = {**case.inputs(), "packed": replaced(case)}
by_batch = case.forward()(other(case))
by_head = case.forward()(case.inputs())
for kind in AxisType.Auto, AxisType.Explicit:
    mesh = jax.make_mesh((8,), ("data",), axis_types=(kind,))
    with jax.set_mesh(mesh):
        whole, parts = (NamedSharding(mesh, spec) for spec in (P(), P("data")))
        placed = {
            name: jax.device_put(v, parts if name == "x" else whole)
            for name, v in arrays.items()
        }
        assert_same_bits(case.forward()(placed), by_batch)
mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
specs = {name: P("data") if name == "x" else P() for name in arrays}
inside = jax.shard_map(case.run, mesh=mesh, in_specs=(specs,), out_specs=P("data"))
assert_same_bits(jax.jit(inside)(arrays), by_batch)
mesh = jax.make_mesh((2,), ("model",), axis_types=(AxisType.Auto,))
with jax.set_mesh(mesh):
    placed = {
        name: jax.device_put(
            v, NamedSharding(mesh, P("model") if name[:2] in ("w_", "b_") else P())
        )
        for name, v in arrays.items()
    }
    # Each device has some of the heads, and reads their weights as they are.
    text = case.forward().lower(placed).compile().as_text()
    assert text.count("prnn_forward") > 0
    assert_same_bits(case.forward()(placed), by_head)
"""
    run_python(script, XLA_FLAGS="--xla_force_host_platform_device_count=8")


def test_exported():
    case = Case("lstm", 6, (2,), 33, 5)
    arrays = case.prepared(case.inputs())
    exported = jax.export.export(
        case.forward(), disabled_checks=prnn_jax.export_checks()
    )(arrays)
    again = jax.export.deserialize(exported.serialize())
    assert_same_bits(again.call(arrays), case.forward()(case.inputs()))


# ---- where there is nothing to prepare, and what is refused ----


def test_the_scan_does_without():
    case = Case("lstm", 6, (2,), 33, 5)
    arrays = case.inputs()
    ours = case.forward("scan")(case.prepared(arrays))
    assert_same_bits(ours, case.forward("scan")(arrays))


def test_float64_is_not_prepared():
    with jax.enable_x64(True):
        case = Case("lstm", 6, (2,), 33, 5)
        arrays = case.inputs(jnp.float64)
        prepared = case.prepared(arrays)
        assert prepared["packed"] is None
        assert_same_bits(case.forward()(prepared), case.forward()(arrays))


@pytest.mark.parametrize(
    ("message", "change"),
    [
        ("cell must be", {"cell": "lstn"}),
        ("batch must be at least 1, got 0", {"batch": 0}),
        ("time must be a whole number, at least 1, got 1.5", {"time": 1.5}),
        ("params must be prnn_jax.Params, got tuple", {"params": (1, 2)}),
        (r"w_hh must be \[hidden, 3\*hidden\]", {"cell": "gru"}),
        (r"w_hh must be \[2, hidden", {"bidirectional": True}),
    ],
)
def test_errors(message, change):
    case = Case("lstm", 6, (2,), 33, 5)
    params = case.params(case.inputs())
    given = {"cell": "lstm", "params": params, "batch": 1, "time": 1}
    with pytest.raises(ValueError, match=message):
        prnn_jax.prepare(**{**given, **change})


def test_what_was_changed_is_refused():
    case = Case("lstm", 6, (2,), 33, 5)
    arrays = case.prepared(case.inputs())
    params = case.params(arrays)
    prepared = prnn_jax.Prepared(params, arrays["packed"])
    halved = jax.tree.map(lambda a: a.astype(jnp.bfloat16), prepared)
    with pytest.raises(ValueError, match="packed must be uint32, got bfloat16"):
        prnn_jax.lstm(arrays["x"].astype(jnp.bfloat16), halved)
