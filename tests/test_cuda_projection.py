"""The LSTM with a projection in the CUDA engine: on a GPU, or emulated."""

import shutil
from dataclasses import dataclass

import clip_cases
import jax
import numpy as np
import pytest
from emulated import EXCHANGES
from jax import export
from on_cuda import HAS_GPU, NUMBERS, check
from projected_support import IN, PROJECTED_CONTROLS, Projected, data, params_of

import prnn_jax
from prnn_jax import convert
from prnn_jax._engine import ffi

pytestmark = pytest.mark.skipif(
    not HAS_GPU and shutil.which("c++") is None, reason="needs c++"
)

CONTROLS = tuple(name for name in PROJECTED_CONTROLS if name != "mask")


@pytest.mark.cuda
@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("number", NUMBERS)
def test_is_as_accurate_as_the_scan(cuda, number, exchange):
    cuda.use(exchange=exchange)
    check(
        Projected("lstm", 5, (3,), 37, projection=17, bidirectional=True, state=True),
        number,
    )
    cuda.expect(f"forward:{exchange}", f"backward:{exchange}")


@dataclass(frozen=True)
class Bounded(Projected):
    """With bounds inside of its step."""

    @property
    def table(self):
        return clip_cases.CELLS[self.cell]

    def __str__(self) -> str:
        return f"clip-{super().__str__()}"


FULL = {"state": True, "controls": CONTROLS}
CASES = [
    Projected("lstm", 1, (1,), 1, 1, projection=1),
    Projected("lstm", 7, (), 15, projection=4, state=True, reverse=True),
    Projected("lstm", 4, (3,), 19, projection=70, state=True),  # wider than the cell
    Projected("lstm", 5, (2, 3), 24, projection=8, time_major=True, state=True),
    Projected("lstm", 0, state=True),
    Projected("lstm", batch=(5,), **FULL),
    Projected("lstm", batch=(5,), bidirectional=True, reverse=True, **FULL),
    Projected("lstm", batch=(2, 3), hidden=19, bidirectional=True, heads=2, **FULL),
    Projected("lstm", batch=(4,), reverse=True, state=True, controls=("lengths",)),
    Projected("lstm", batch=(4,), reverse=True, state=True, controls=("resets",)),
    Projected("lstm", 40, (3,), lean=True, **FULL),
    Projected("lstm", 20, (4,), 6, lean=True, bidirectional=True, reverse=True, **FULL),
    Projected("lstm_peephole", batch=(5,), bidirectional=True, **FULL),
    Projected("lstm_general", 20, (4,), 6, lean=True, reverse=True, **FULL),
    Bounded("lstm", batch=(5,), **FULL),
    Bounded("lstm_peephole", 20, (3,), 19, lean=True, **FULL),
]


@pytest.mark.cuda
@pytest.mark.parametrize("case", CASES, ids=str)
def test_sizes_and_options(cuda, case):
    """With the plan of the planner's choice; exact, where there are all controls."""
    check(case, "float32" if case.controls == CONTROLS else "bfloat16")
    if not HAS_GPU:
        kinds = {of.split(":")[0] for of in cuda.ran}
        assert kinds == ({"forward", "backward"} if case.time else set())


@pytest.mark.cuda
@pytest.mark.parametrize("controls", [(), ("lengths", "resets")])
def test_c_in_float32_beside_16_bits(cuda, controls):
    case = Projected("lstm", batch=(4,), state=True, controls=controls)
    arrays = {name: a.astype("bfloat16") for name, a in case.inputs().items()}
    wide = {
        name: a.astype("float32") if name in ("c_0", "reset_c") else a
        for name, a in arrays.items()
    }

    def run(arrays):
        def loss(arrays):
            y, state = case.run(arrays, None)
            return sum(a.astype("float32").sum() for a in (y, *state)), (y, *state)

        return jax.jit(jax.grad(loss, has_aux=True))(arrays)

    (of_wide, ours), (of_narrow, want) = run(wide), run(arrays)
    assert ours[2].dtype == of_wide["c_0"].dtype == "float32"
    for found, narrow in zip(ours, want, strict=True):
        np.testing.assert_array_equal(found.astype("bfloat16"), narrow)
    for name, narrow in of_narrow.items():
        np.testing.assert_array_equal(of_wide[name].astype("bfloat16"), narrow)


def test_a_mask_stands_between_the_matrices(emulated):
    case = Projected("lstm", batch=(4,), state=True, controls=("mask",))
    emulated.use()
    arrays = case.inputs()
    ours = case.forward(None)(arrays)
    assert emulated.ran == []
    jax.tree.map(np.testing.assert_array_equal, ours, case.forward("scan")(arrays))


@pytest.mark.cuda
@pytest.mark.parametrize("bidirectional", [False, True])
def test_as_pytorch(cuda, bidirectional):
    torch = pytest.importorskip("torch")
    sizes = {"proj_size": 6, "bidirectional": bidirectional, "batch_first": True}
    theirs = torch.nn.LSTM(IN, 20, **sizes)
    (params,) = convert.import_pytorch(theirs).layers
    x = data(3, 9, IN).astype(np.float32)
    with torch.no_grad():
        want, (h_n, c_n) = theirs(torch.from_numpy(x))
    y, state = prnn_jax.lstm(
        x, params, bidirectional=bidirectional, precision="highest"
    )
    np.testing.assert_allclose(y, want.numpy(), atol=1e-5)
    for ours, of_torch in zip(state, (h_n, c_n), strict=True):
        lead = of_torch.numpy() if bidirectional else of_torch.numpy()[0]
        np.testing.assert_allclose(ours, lead, atol=1e-5)


@pytest.mark.cuda
def test_second_derivatives_and_vmap(cuda):
    case = Projected("lstm", 4, (3,), 6, 4, projection=5, state=True)
    several = {k: np.stack([a, 0.5 * a]) for k, a in case.inputs().items()}

    def second(implementation):
        def loss(arrays):
            y, state = case.run(arrays, implementation)
            return (y**3).sum() + sum((s**2).sum() for s in state)

        def slope(arrays):
            return sum(g.sum() for g in jax.grad(loss)(arrays).values())

        return jax.jit(jax.vmap(jax.grad(slope)))(several)

    with jax.default_matmul_precision("highest"):
        ours, want = second(None), second("scan")
    for name, value in ours.items():
        np.testing.assert_allclose(value, want[name], rtol=2e-4, atol=2e-5)


@pytest.mark.skipif("cuda" not in ffi.PLATFORMS, reason="built without CUDA")
@pytest.mark.parametrize("has_lengths", [False, True])
def test_exported_of_any_sizes(has_lengths, monkeypatch):
    monkeypatch.setenv("PRNN_CUDA_DEVICE", "NVIDIA H200")
    batch, time = export.symbolic_shape("b, t")

    def step(x, params, lengths):
        def loss(params):
            y, (h_n, _) = prnn_jax.lstm(x, params, reverse=True, lengths=lengths)
            return (y * y).sum() + h_n.sum()

        return jax.value_and_grad(loss)(params)

    x = jax.ShapeDtypeStruct((batch, time, IN), np.float32)
    lengths = jax.ShapeDtypeStruct((batch,), np.int32) if has_lengths else None
    options = {
        "platforms": ["cuda"],
        "disabled_checks": prnn_jax.export_checks(),
    }
    program = export.export(jax.jit(step), **options)(x, params_of(), lengths)
    text = program.mlir_module()
    calls = "prnn_forward", "prnn_backward", "stablehlo.while"
    assert [text.count(name) for name in calls] == [1, 1, 0]
