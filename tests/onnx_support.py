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


def model_of(nodes, arrays, inputs=(), output="Y", sizes=(None, None, None)):
    graph = helper.make_graph(
        nodes,
        "graph",
        [value("X", *sizes), *inputs],
        [helper.make_empty_tensor_value_info(output)],
        [numpy_helper.from_array(a, name) for name, a in arrays.items()],
    )
    opsets = [helper.make_opsetid("", OPSET)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def node_of(cell: str, inputs=("X", "W", "R", "B"), name="the", **options):
    return helper.make_node(
        cell, list(inputs), ["Y"], name=name, hidden_size=HIDDEN, **options
    )


def node_between(operator: str, inputs: list, output: str, **attributes):
    return helper.make_node(operator, inputs, [output], name=output, **attributes)


def pair_of_nodes(n: int, cell: str, x: str, squeezed: bool, **options):
    """A layer's directions as two nodes, one of which reads x from its end."""
    nodes, sides = [node_between("Slice", [x, *"seas"], f"turned_{n}")], []
    for side, source in enumerate((x, f"turned_{n}")):
        if squeezed:
            nodes.append(node_between("Unsqueeze", [source, "one"], f"x_{n}_{side}"))
            source = f"x_{n}_{side}"
        y = f"y_{n}_{side}"
        names = [source, *(f"{k}_{n}_{side}" for k in "WRB")]
        nodes.append(
            helper.make_node(cell, names, [y], name=y, hidden_size=HIDDEN, **options)
        )
        axes = "one_two" if squeezed else "one"
        nodes.append(node_between("Squeeze", [y, axes], f"s_{n}_{side}"))
        sides.append(f"s_{n}_{side}")
    nodes.append(node_between("Slice", [sides[1], *"seas"], f"back_{n}"))
    return nodes, [sides[0], f"back_{n}"]


def pairs(cell: str, squeezed: bool, order=(0, 1), **options):
    """Two layers of such, each of which gets both directions side by side."""
    arrays = {"one": np.array([1]), "one_two": np.array([1, 2])}
    arrays |= {"s": np.array([-1]), "e": np.array([np.iinfo(np.int64).min])}
    arrays["a"] = np.array([0])
    nodes, x = [], "X"
    for n in range(2):
        made, sides = pair_of_nodes(n, cell, x, squeezed, **options)
        nodes += made
        x = "Y" if n == 1 else f"both_{n}"
        sides = [sides[i] for i in order]
        nodes.append(node_between("Concat", sides, x, axis=1 if squeezed else 2))
        for side in range(2):
            size = 2 * HIDDEN if n else IN
            of_side = weights(cell, 1, size)
            arrays |= {
                f"{k}_{n}_{side}": a * (1 + 0.1 * n - 0.3 * side)
                for k, a in of_side.items()
            }
    arrays = {k: a if a.dtype == np.int64 else a.astype("f") for k, a in arrays.items()}
    rank = (None,) * (2 if squeezed else 3)
    graph = helper.make_graph(
        nodes,
        "graph",
        [value("X", *rank)],
        [helper.make_empty_tensor_value_info("Y")],
        [numpy_helper.from_array(a, name) for name, a in arrays.items()],
    )
    opsets = [helper.make_opsetid("", OPSET)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


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
