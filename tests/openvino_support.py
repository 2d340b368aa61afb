"""Models of OpenVINO that are built by its operators, and what its CPU gives."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from libraries import library
from support import assert_as_accurate

pytest.importorskip("onnx")
BATCH, TIME, IN, HIDDEN = 3, 7, 5, 6
#: How models are run.
EXACT = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
AFTER = {"linear_before_reset": True}
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype("f") / 2


X = 4 * random(BATCH, TIME, IN, seed=9)


def operators() -> Any:
    """OpenVINO's; the test is skipped where it is not installed."""
    library("openvino")
    from openvino import opset13

    return opset13


def parameter(shape: Sequence[int], name: str, dtype: Any = np.float32) -> Any:
    made = operators().parameter(list(shape), dtype, name=name)
    made.output(0).get_tensor().set_names({name})
    return made


def model_of(outputs: Sequence[Any], inputs: Sequence[Any], sinks=()) -> Any:
    openvino = library("openvino")
    ops = operators()
    results = [ops.result(one) for one in outputs]
    return openvino.Model(results, list(sinks), list(inputs), "model")


def ran(model: Any, *inputs: np.ndarray) -> list[np.ndarray]:
    """What the CPU gives, in float32."""
    openvino = library("openvino")
    compiled = openvino.Core().compile_model(model, "CPU", EXACT)
    return list(compiled(list(inputs)).values())


def plain(array: np.ndarray) -> Any:
    return operators().constant(array)


@dataclass
class Case:
    """A recurrent operator, and what prnn_jax is to make of it."""

    name: str
    cell: str = "LSTM"
    direction: str = "forward"
    options: dict[str, Any] = field(default_factory=dict)
    expected: dict[str, Any] = field(default_factory=dict)
    store: Callable[[np.ndarray], Any] = plain
    batch: int = BATCH
    time: int = TIME
    states: bool = False

    @property
    def directions(self) -> int:
        return 2 if self.direction == "bidirectional" else 1

    def weights(self, width: int = IN, seed: int = 0, lead: bool = True) -> list[Any]:
        """W, R and B; without an axis of directions for a cell."""
        gates = GATES[self.cell]
        biases = gates + self.options.get("linear_before_reset", False)
        shapes = (gates, width), (gates, HIDDEN), (biases,)
        made = []
        for n, (count, *rest) in enumerate(shapes):
            shape = (self.directions, count * HIDDEN, *rest)[0 if lead else 1 :]
            array = random(*shape, seed=10 * seed + n)
            made.append(self.store(array) if rest else operators().constant(array))
        return made

    @property
    def states_count(self) -> int:
        return 2 if self.cell == "LSTM" else 1


def sequence(case: Case, x: Any, lengths: Any = None, width: int = IN, seed: int = 0):
    """The operator of a case, of some x `[batch, time, input]`."""
    ops = operators()
    shape = (case.batch, case.directions, HIDDEN)
    if lengths is None:
        lengths = ops.constant(np.full(case.batch, case.time, np.int64))
    states = [
        ops.constant(
            random(*shape, seed=20 + n) if case.states else np.zeros(shape, "f")
        )
        for n in range(case.states_count)
    ]
    make = getattr(ops, f"{case.cell.lower()}_sequence")
    options = dict(case.options)
    return make(
        x,
        *states,
        lengths,
        *case.weights(width, seed),
        HIDDEN,
        case.direction,
        **options,
    )


def side_by_side(operator: Any) -> Any:
    """Y `[batch, directions, time, hidden]` as a layer's `[batch, time, features]`."""
    ops = operators()
    turned = ops.transpose(operator.output(0), ops.constant(np.array([0, 2, 1, 3])))
    return ops.reshape(turned, ops.constant(np.array([0, 0, -1])), special_zero=True)


def in_float64(net: Any, x: np.ndarray, **options: Any) -> np.ndarray:
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda a: jnp.asarray(np.asarray(a), jnp.float64), net)
        y, _ = wide(jnp.asarray(x, jnp.float64), implementation="scan", **options)
        return np.asarray(y)


def assert_is_openvino(net: Any, theirs: Any, x: np.ndarray, **options: Any) -> None:
    """Our y and OpenVINO's are both as exact as a scan in float32."""
    scan = np.asarray(net(x, implementation="scan", **options)[0])
    exact = in_float64(net, x, **options)
    assert_as_accurate(np.asarray(net(x, **options)[0]), scan, exact)
    assert_as_accurate(theirs, scan, exact)
