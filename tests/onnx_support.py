"""Models of ONNX with random weights, and what ONNX Runtime makes of them."""

import numpy as np
import pytest

from prnn_jax.convert import Imported

onnx, ort = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

IN, HIDDEN, BATCH, TIME = 5, 7, 3, 6
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
OPSET = 17


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32) / 2


def weights(cell: str, directions: int = 1, size: int = IN) -> dict[str, np.ndarray]:
    wide = GATES[cell] * HIDDEN
    return {
        "W": random(directions, wide, size, seed=1),
        "R": random(directions, wide, HIDDEN, seed=2),
        "B": random(directions, 2 * wide, seed=3),
    }


def value(name: str, *shape: object):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def model_of(nodes, arrays, inputs=(), output="Y"):
    graph = helper.make_graph(
        nodes,
        "graph",
        [value("X", None, None, None), *inputs],
        [helper.make_empty_tensor_value_info(output)],
        [numpy_helper.from_array(a, name) for name, a in arrays.items()],
    )
    opsets = [helper.make_opsetid("", OPSET)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def node_of(cell: str, inputs=("X", "W", "R", "B"), name="the", **options):
    return helper.make_node(
        cell, list(inputs), ["Y"], name=name, hidden_size=HIDDEN, **options
    )


def y_of(model, x: np.ndarray, **others) -> np.ndarray:
    """What ONNX Runtime gives, directions side by side."""
    session = ort.InferenceSession(model.SerializeToString())
    (y,) = session.run(None, {"X": x, **others})
    return np.moveaxis(y, 1, 2).reshape(len(x), x.shape[1], -1)


def assert_computes_the_same(net: Imported, model, x: np.ndarray, **options) -> None:
    y, _ = net(x, **options)
    # A few roundings of sums below 4: ONNX Runtime's are in float32, too.
    np.testing.assert_allclose(y, y_of(model, x), rtol=0, atol=2e-6)


X = random(TIME, BATCH, IN, seed=9)
