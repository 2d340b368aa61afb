"""jax.export, ahead-of-time compilation and the compilation cache."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CELLS, Case
from jax import export
from support import assert_bitwise_equal, run_python

import prnn_jax

pytest.importorskip("flatbuffers")

EVERY = ("lengths", "resets", "reset_to", "mask")
CASES = [
    Case("lstm", 6, (3,), 9, 4, state=True),
    Case("gru", 6, (3,), 9, 4, bidirectional=True, controls=EVERY),
    Case("slstm", 6, (3,), 8, 4, heads=2, lean=True),
]


def exported(function, *args, **options):
    """Through bytes and back."""
    checks = prnn_jax.export_checks()
    made = export.export(jax.jit(function), disabled_checks=checks, **options)(*args)
    return export.deserialize(made.serialize(vjp_order=options.pop("vjp_order", 0)))


def loss(case, arrays):
    y, state = case.run(arrays)
    return jnp.sum(jnp.sin(y)) + sum(jnp.sum(s * s) for s in state)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_inference(case):
    program = exported(case.run, case.inputs())
    assert "prnn_forward" in program.mlir_module()
    ours = program.call(case.inputs())
    assert_bitwise_equal(ours, jax.jit(case.run)(case.inputs()))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_training_step(case):
    step = jax.grad(functools.partial(loss, case))
    program = exported(step, case.inputs())
    assert "prnn_backward" in program.mlir_module()
    assert_bitwise_equal(program.call(case.inputs()), jax.jit(step)(case.inputs()))


def test_without_the_checks_jax_refuses():
    case = CASES[0]
    with pytest.raises(ValueError, match="prnn_forward"):
        export.export(jax.jit(case.run))(case.inputs())


def test_symbolic_time_and_batch():
    time, batch = export.symbolic_shape("t, b")
    case = CASES[0]
    weights = {name: v for name, v in case.inputs().items() if name[0] != "x"}
    params = prnn_jax.Params(*(weights[n] for n in ("w_ih", "w_hh", "b_ih", "b_hh")))

    def step(x, lengths, params):
        def loss(params):
            y, (h_n, _) = prnn_jax.lstm(x, params, lengths=lengths, reverse=True)
            return jnp.sum(y * y) + jnp.sum(h_n)

        return jax.value_and_grad(loss)(params)

    x = jax.ShapeDtypeStruct((batch, time, 4), jnp.float32)
    lengths = jax.ShapeDtypeStruct((batch,), jnp.int32)
    program = exported(step, x, lengths, params)
    random = np.random.default_rng(0)
    for sizes in ((2, 5), (7, 1), (3, 40)):
        x = random.standard_normal((*sizes, 4)).astype(np.float32)
        lengths = random.integers(0, sizes[1] + 1, sizes[0]).astype(np.int32)
        ours, theirs = (
            program.call(x, lengths, params),
            jax.jit(step)(x, lengths, params),
        )
        # The projection is XLA's where its size is not known: other roundings.
        jax.tree.map(
            functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4),
            ours,
            theirs,
        )


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("reserve", ["fast", "lean"])
def test_a_training_step_that_predicts_the_next(reverse, reserve):
    """Of x[:, :-1]: one step less than is known to be there at all."""
    time, batch = export.symbolic_shape("t, b")
    arrays = CASES[1].inputs()
    params = prnn_jax.Params(*(arrays[n] for n in ("w_ih", "w_hh", "b_ih", "b_hh")))
    options = {"bidirectional": True, "reverse": reverse, "reserve": reserve}

    def step(x, params):
        def loss(params):
            y, _ = prnn_jax.gru(x[:, :-1], params, **options)
            return jnp.sum((y[..., :4] - x[:, 1:]) ** 2)

        return jax.value_and_grad(loss)(params)

    x = jax.ShapeDtypeStruct((batch, time, 4), jnp.float32)
    program = exported(step, x, params)
    for sizes in ((2, 5), (3, 40), (2, 2)):
        x = np.random.default_rng(0).standard_normal((*sizes, 4)).astype(np.float32)
        # The projection is XLA's where its size is not known: other roundings.
        jax.tree.map(
            functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4),
            program.call(x, params),
            jax.jit(step)(x, params),
        )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("cell", CELLS)
def test_no_steps_or_no_rows_at_run_time(cell, dtype):
    """With time = 0 the state is state_0, as when that is known before."""
    case = Case(cell, 1, (3,), 7, 4, state=True, controls=("lengths", "resets"))
    arrays = jax.tree.map(lambda a: jnp.asarray(a, dtype), case.inputs())
    params = prnn_jax.Params(*(arrays[n] for n in ("w_ih", "w_hh", "b_ih", "b_hh")))
    names = [name for name in arrays if name.endswith("_0")]
    given = tuple(arrays[name] for name in names)
    scales = jnp.asarray([2, 3, 5, 7], dtype)

    def run(x, resets, lengths, states):
        def last(states, reset_to):
            single = len(names) == 1
            y, state_n = CELLS[cell].function(
                x,
                params,
                states[0] if single else states,
                lengths=lengths,
                resets=resets,
                reset_to=reset_to[0] if single else reset_to,
                **CELLS[cell].options,
            )
            state_n = (state_n,) if single else state_n
            products = zip(scales, state_n, strict=False)
            return sum((k * s).sum() for k, s in products), (y, state_n)

        gradients = jax.grad(last, (0, 1), has_aux=True)
        return gradients(tuple(states), tuple(map(jnp.ones_like, states)))

    time, batch = export.symbolic_shape("t, b")

    # A symbol is 1 or more: without the first row and step there may be none.
    def rest(x, resets, lengths, states):
        return run(x[1:, 1:], resets[1:, 1:], lengths[1:], [s[1:] for s in states])

    program = exported(
        rest,
        jax.ShapeDtypeStruct((batch, time, 4), dtype),
        jax.ShapeDtypeStruct((batch, time), bool),
        jax.ShapeDtypeStruct((batch,), jnp.int32),
        tuple(jax.ShapeDtypeStruct((batch, 7), dtype) for _ in names),
    )
    assert "prnn_backward" in program.mlir_module()
    for rows, steps in ((3, 0), (0, 5), (0, 0)):
        states = tuple(s[:rows] for s in given)
        more = tuple(jnp.concatenate([s[:1], s[:rows]]) for s in given)
        x = jnp.ones((rows + 1, steps + 1, 4), dtype)
        resets = jnp.ones((rows + 1, steps + 1), bool)
        lengths = jnp.full(rows + 1, 9, jnp.int32)
        (dstates, dreset_to), (y, state_n) = program.call(x, resets, lengths, more)
        assert y.shape == (rows, steps, 7)
        assert_bitwise_equal(state_n, states)
        expected = tuple(
            jnp.full_like(s, k) for k, s in zip(scales, states, strict=False)
        )
        assert_bitwise_equal(dstates, expected)
        assert not any(np.asarray(d, np.float32).any() for d in dreset_to)


def test_platforms():
    """One program for many: native calls by name where there are such, else a scan."""
    case = CASES[0]
    text = exported(case.run, case.inputs(), platforms=["cpu", "tpu"]).mlir_module()
    assert text.count("custom_call @prnn_forward") == 1
    assert text.count("stablehlo.while") == 1
    tpu = exported(case.run, case.inputs(), platforms=["tpu"]).mlir_module()
    assert "custom_call @prnn" not in tpu
    assert tpu.count("stablehlo.while") == 1


@pytest.mark.skipif(prnn_jax._engine.modules.cuda is None, reason="built without CUDA")
def test_for_cpu_and_cuda(monkeypatch):
    monkeypatch.setenv("PRNN_CUDA_DEVICE", "NVIDIA H200")
    case = Case("lstm", 6, (3,), 72, 4, state=True)
    program = exported(case.run, case.inputs(), platforms=["cpu", "cuda", "tpu"])
    assert program.mlir_module().count("custom_call @prnn_forward") == 2
    assert program.mlir_module().count("stablehlo.while") == 1
    assert_bitwise_equal(program.call(case.inputs()), case.forward()(case.inputs()))


def test_a_program_for_cuda_without_its_engine(monkeypatch):
    """A scan, unless the engine is asked for."""
    monkeypatch.setattr(prnn_jax._engine.ffi, "PLATFORMS", ("cpu",))
    case = CASES[0]
    with pytest.raises(NotImplementedError, match="is for cpu, and is compiled for cu"):
        exported(case.forward("native"), case.inputs(), platforms=["cpu", "cuda"])


def test_another_process_runs_it(tmp_path):
    case = CASES[1]
    path = tmp_path / "program"
    checks = prnn_jax.export_checks()
    made = export.export(case.forward(), disabled_checks=checks)(case.inputs())
    path.write_bytes(made.serialize())
    np.save(tmp_path / "y.npy", case.forward()(case.inputs())[0])
    run_python(
        "import sys, numpy as np, jax\n"
        "import prnn_jax\n"
        "from jax import export\n"
        "from test_export import CASES\n"
        "program = export.deserialize(open(sys.argv[1] + '/program', 'rb').read())\n"
        "y = np.asarray(program.call(CASES[1].inputs())[0])\n"
        "np.testing.assert_array_equal(y, np.load(sys.argv[1] + '/y.npy'))\n",
        str(tmp_path),
    )


@pytest.mark.parametrize("devices", ["one", "several"])
def test_the_compilation_cache_is_hit(devices, tmp_path):
    """Under an Auto mesh of several, JAX must leave a pointer out of its key."""
    script = (
        "import sys, jax\n"
        "from cases import Case\n"
        "from jax.sharding import AxisType, NamedSharding, PartitionSpec as P\n"
        "jax.config.update('jax_enable_compilation_cache', True)\n"
        "jax.config.update('jax_compilation_cache_dir', sys.argv[1])\n"
        "jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)\n"
        "hits = []\n"
        "jax.monitoring.register_event_listener(\n"
        "    lambda name, **_: hits.append(name) if 'cache_hits' in name else None)\n"
        "misses = []\n"
        "jax.monitoring.register_event_listener(\n"
        "    lambda name, **_: misses.append(name) if 'cache_misses' in name else 0)\n"
        "case = Case('lstm', 6, (4,), 9, 4, state=True)\n"
        "arrays, cotangents = case.inputs(), case.cotangents()\n"
        "if jax.device_count() > 1:\n"
        "    name = 'jax_remove_custom_partitioning_ptr_from_cache_key'\n"
        "    jax.config.update(name, True)\n"
        "    mesh = jax.make_mesh((2,), ('data',), axis_types=(AxisType.Auto,))\n"
        "    by_batch = NamedSharding(mesh, P('data'))\n"
        "    arrays['x'] = jax.device_put(arrays['x'], by_batch)\n"
        "case.gradient()(arrays, cotangents)\n"
        "print(len(hits), len(misses))\n"
    )
    two = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    environment = two if devices == "several" else {}
    hits, misses = run_python(script, str(tmp_path), **environment).split()
    assert int(hits) == 0
    assert int(misses) >= 1
    hits, misses = run_python(script, str(tmp_path), **environment).split()
    assert int(hits) >= 1
    assert int(misses) == 0
