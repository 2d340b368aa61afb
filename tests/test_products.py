"""Gradients of weights and inputs by the CPU engine: where, how accurately, and what it
is told. tests/native/check_engine.cc runs its products under the sanitizers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import SMALL, Case
from support import Program, assert_as_accurate, assert_bitwise_equal, run_python

from prnn_jax._engine import weight_products, workspaces
from prnn_jax._engine.modules import native
from prnn_jax._engine.weight_products import Projection, Weights

#: Rows of steps, groups, hidden, columns, input: around vectors, panels, and the depth
#: that is summed at a time.
SIZES = [
    (1, 1, 1, 1, 1),
    (7, 2, 5, 20, 3),
    (33, 1, 17, 51, 40),
    (130, 3, 64, 192, 16),
    (600, 1, 70, 70, 129),
]


def operands(
    rows: int, groups: int, hidden: int, columns: int, inputs: int, dtype="float32"
):
    random = np.random.default_rng(rows)

    def draw(*shape):
        return jnp.asarray(random.standard_normal(shape), dtype)

    lead = (1, rows) if rows % 2 else (2, rows // 2)
    da = draw(*lead, groups, columns)
    weights = (Weights(draw(*lead, groups, hidden), da),)
    return weights, Projection(draw(*lead, inputs), draw(inputs, groups, columns), da)


def exactly(weights, projection):
    """The results in float64."""
    weights, projection = jax.tree.map(
        lambda a: np.asarray(a, np.float64), (weights, projection)
    )
    of_weights = tuple(
        weight_products.OfWeights(np.einsum("abgh,abgn->ghn", h, da), da.sum((0, 1)))
        for h, da in weights
    )
    if projection is None:
        return of_weights, None
    x, w, da = projection
    dx, dw = np.einsum("abgc,igc->abi", da, w), np.einsum("abi,abgc->igc", x, da)
    return of_weights, weight_products.OfProjection(dx, dw, da.sum((0, 1)))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("projects", [True, False])
def test_are_as_accurate_as_xlas(sizes, projects):
    weights, projection = operands(*sizes)
    given = weights, projection if projects else None
    ours = jax.jit(weight_products._by_engine)(*given)
    by_xla = functools.partial(weight_products._by_xla, None, None)
    assert_as_accurate(ours, jax.jit(by_xla)(*given), exactly(*given))


def check_bfloat16(sizes):
    """Sums of float32, of which each is rounded once."""
    given = operands(*sizes, "bfloat16")
    ours, exact = jax.jit(weight_products._by_engine)(*given), exactly(*given)
    for value, of in zip(jax.tree.leaves(ours), jax.tree.leaves(exact), strict=True):
        assert value.dtype == jnp.bfloat16
        rounding = 2.0**-8 * np.abs(of) + 4 * np.finfo(np.float32).eps * np.max(
            np.abs(of)
        )
        assert (np.abs(np.asarray(value, np.float64) - of) <= rounding).all()


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_of_bfloat16_are_rounded_once(sizes):
    check_bfloat16(sizes)


@pytest.mark.parametrize("isa", ["portable", "avx2", "avx512", "amx_emulated", "neon"])
def test_bfloat16_goes_without_an_instruction_for_it(isa):
    """A program compiled where there is one may run elsewhere."""
    if not native.has_isa(isa):
        pytest.skip(f"this processor has no {isa}")
    script = "import test_products as t; [t.check_bfloat16(sizes) for sizes in t.SIZES]"
    run_python(script, PRNN_CPU_ISA=isa)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_infinities_stay_in_their_rows(dtype):
    """Nothing behind a row is multiplied, not even by zero."""
    a = jnp.ones((3, 1, 5), dtype).at[1, 0, 0].set(jnp.inf)
    b = jnp.ones((4, 1, 5), dtype).at[2, 0, 0].set(jnp.nan)
    _, (c,) = jax.jit(weight_products._native)([], [(a, b)])
    expected = np.full((3, 4), 5.0)
    expected[1], expected[:, 2] = np.inf, np.nan
    np.testing.assert_array_equal(np.asarray(c[:, 0], np.float32), expected)
    ((c, sums),), _ = jax.jit(weight_products._native)([(a, a)], [])
    expected = np.full((5, 5), 3.0)
    expected[0] = expected[:, 0] = np.inf
    np.testing.assert_array_equal(np.asarray(c[0], np.float32), expected)
    np.testing.assert_array_equal(np.asarray(sums[0], np.float32), expected[1])


# ---- where ---------------------------------------------------------------------------


def program_of(case: Case) -> Program:
    return Program.of(case.gradient(), case.inputs(), case.cotangents())


@pytest.mark.parametrize("case", SMALL, ids=str)
def test_it_makes_all_products(case):
    program = program_of(case)
    assert program.count("prnn_products") == 2
    assert program.count("dot") == 0


def test_dx_is_not_made_for_no_one():
    case = Case("lstm", 5, (2,), 9, 3)
    arrays = case.inputs()

    def loss(w_ih):
        y, _ = case.run({**arrays, "w_ih": w_ih})
        return jnp.sum(jnp.sin(y))

    program = Program.of(jax.grad(loss), arrays["w_ih"])
    assert program.count("prnn_products") == 1
    assert program.count("dot") == 0


def test_large_products_are_xlas(monkeypatch):
    case = Case("lstm", 5, (2,), 9, 3)
    work = 10 * 36 * (9 + 2 * 3)
    for most, (by_engine, by_xla) in ((work, (2, 0)), (work - 1, (0, 3))):
        monkeypatch.setattr(weight_products, "MAX_MULTIPLY_ADDS", most)
        jax.clear_caches()
        program = program_of(case)
        assert (program.count("prnn_products"), program.count("dot")) == (
            by_engine,
            by_xla,
        )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bits_are_xlas_where_no_instruction_multiplies_them(dtype):
    case = Case("gru", 5, (2,), 9, 3)
    arrays, cotangents = jax.tree.map(
        lambda a: jnp.asarray(a, dtype), (case.inputs(), case.cotangents())
    )
    program = Program.of(case.gradient(), arrays, cotangents)
    assert program.count("prnn_backward") == 1
    is_native = dtype in weight_products.DTYPES
    assert is_native == (dtype == "bfloat16" and native.sums_pairs())
    assert program.count("prnn_products") == (2 if is_native else 0)


def test_the_scan_does_without():
    case = Case("lstm", 5, (2,), 9, 3)
    for controls in ((), ("lean",)):
        case = Case("lstm", 5, (2,), 9, 3, lean="lean" in controls)
        gradient = case.gradient("scan")
        program = Program.of(gradient, case.inputs(), case.cotangents())
        assert program.count("prnn_products") == 0


def test_gradients_of_each_example_are_xlas():
    """A mapped weight gradient is no sum over the mapped axis."""
    case = Case("lstm", 5, (2,), 9, 3)
    arrays = case.inputs()

    def loss(weights, x):
        y, _ = case.run({**arrays, **weights, "x": x})
        return jnp.sum(jnp.sin(y))

    weights = {name: arrays[name] for name in ("w_ih", "w_hh")}
    xs = jnp.stack([arrays["x"], 2 * arrays["x"]])
    each = jax.vmap(jax.grad(loss), (None, 0))
    assert Program.of(each, weights, xs).count("prnn_products") == 0
    found = jax.jit(each)(weights, xs)
    for n, x in enumerate(xs):
        alone = jax.jit(jax.grad(loss))(weights, x)
        for name, value in alone.items():
            np.testing.assert_allclose(found[name][n], value, rtol=1e-5, atol=1e-6)


def test_many_devices_share_xlas():
    script = """
import test_products
from cases import Case
program = test_products.program_of(Case("lstm", 5, (2,), 9, 3))
assert program.count("prnn_backward") == 1
assert program.count("prnn_products") == 0
"""
    run_python(script, XLA_FLAGS="--xla_force_host_platform_device_count=2")


# ---- equal bits ----------------------------------------------------------------------

DIGEST = """
import hashlib, jax, numpy as np
from test_products import SIZES, operands
from prnn_jax._engine import weight_products
for sizes in [*SIZES, *((*sizes, "bfloat16") for sizes in SIZES)]:
    results = jax.jit(weight_products._by_engine)(*operands(*sizes))
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(results):
        digest.update(np.ascontiguousarray(leaf))
    print(sizes, digest.hexdigest())
"""


@pytest.mark.parametrize("threads", [2, 5])
def test_results_do_not_depend_on_the_number_of_threads(threads):
    alone = run_python(DIGEST, PJRT_NPROC="1", PRNN_CPU_WORKERS="0")
    assert alone.count("\n") == 2 * len(SIZES)
    assert run_python(DIGEST, PJRT_NPROC=str(threads), PRNN_CPU_WORKERS="0") == alone
    assert run_python(DIGEST) == alone


# ---- what it is told -----------------------------------------------------------------


def products(*operands, results, over_rows=(1,)):
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in results]
    return jax.ffi.ffi_call("prnn_products", shapes)(
        *operands, over_rows=np.array(over_rows, np.int64)
    )


def test_a_call_as_it_should_be():
    a = jnp.arange(6.0).reshape(2, 1, 3)
    workspace = workspaces.products_floats([(a, a)], [])
    c, sums, _ = products(a, a, results=[(1, 3, 3), (1, 3), (workspace,)])
    assert_bitwise_equal(c[0], a[:, 0].T @ a[:, 0])
    assert_bitwise_equal(sums[0], a[:, 0].sum(0))


@pytest.mark.parametrize(
    ("operands", "options", "message"),
    [
        (((2, 1, 3), (3, 1, 3)), {}, "do not fit"),
        (((2, 1, 3), (2, 2, 3)), {}, "do not fit"),
        (((2, 3), (2, 3)), {}, "do not fit"),
        (((2, 1, 3), (2, 1, 3)), {"over_rows": ()}, "1 to 8, of two each"),
        (((2, 1, 3), (2, 1, 3)), {"over_rows": (1, 1)}, "1 to 8, of two each"),
        (((2, 1, 3), (2, 1, 3)), {"results": [(1, 3, 2), (1, 3), (9999,)]}, "version"),
        (((2, 1, 3), (2, 1, 3)), {"results": [(1, 3, 3), (1, 3), (9,)]}, "workspace"),
    ],
)
def test_a_call_that_does_not_fit_is_an_error(operands, options, message):
    options = {"results": [(1, 3, 3), (1, 3), (9999,)], **options}
    arrays = [jnp.zeros(shape) for shape in operands]
    with pytest.raises(Exception, match=f"prnn_jax: .*{message}"):
        jax.block_until_ready(products(*arrays, **options))


def test_a_second_derivative_goes_through():
    case = Case("gru", 4, (2,), 5, 3)
    arrays = case.inputs()

    def slope(implementation, x):
        run = functools.partial(case.run, implementation=implementation)
        of_w = jax.grad(lambda w: jnp.sum(run({**arrays, "x": x, "w_hh": w})[0] ** 2))
        return jnp.sum(of_w(arrays["w_hh"]) ** 2)

    found, expected = (
        jax.jit(jax.grad(functools.partial(slope, name)))(arrays["x"])
        for name in ("native", "scan")
    )
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
