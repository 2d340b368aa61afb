"""Nodes of ONNX, by its own evaluator and by ONNX Runtime."""

import functools

import numpy as np

from libraries.layer import BATCH, HIDDEN, IN, TIME, Layer, library
from prnn_jax import convert


class OnnxReference(Layer):
    """ONNX's own evaluator of its definitions."""

    time_major = True

    def arrays(self, draw):
        rows = {"lstm": 4, "gru": 3, "rnn": 1}[self.function] * HIDDEN
        arrays = {
            "W": draw((self.directions, rows, IN)),
            "R": draw((self.directions, rows, HIDDEN)),
            "B": draw((self.directions, 2 * rows)),
        }
        arrays = {name: array.astype(self.dtype) for name, array in arrays.items()}
        return arrays if self.b_hh == "keep" else {n: arrays[n] for n in ("W", "R")}

    def run(self, arrays, x, state):
        given = dict(zip(("initial_h", "initial_c"), state, strict=False))
        outputs = ["Y", "Y_h", "Y_c"][: 1 + len(state)]
        model = self._model(arrays, list(given), outputs)
        y, *state = self._evaluate(model, {"X": x, **given})
        return np.swapaxes(y, 1, 2).reshape(TIME, BATCH, -1), tuple(state)

    def _evaluate(self, model, inputs):
        library("onnx")
        return library("onnx.reference").ReferenceEvaluator(model).run(None, inputs)

    def _model(self, arrays, states, outputs):
        onnx = library("onnx")
        make, double = onnx.helper, onnx.TensorProto.DOUBLE
        dtype = double if self.dtype == "float64" else onnx.TensorProto.FLOAT
        bias = "B" if "B" in arrays else ""
        node = make.make_node(
            self.cell,
            ["X", "W", "R", bias, "", *states],
            outputs,
            hidden_size=HIDDEN,
            **self.options,
        )
        of_type = functools.partial(make.make_tensor_value_info, elem_type=dtype)
        graph = make.make_graph(
            [node],
            self.cell,
            [of_type(name, shape=None) for name in ("X", *states)],
            [of_type(name, shape=None) for name in outputs],
            [onnx.numpy_helper.from_array(a, name) for name, a in arrays.items()],
        )
        opsets = [make.make_opsetid("", 21)]
        return make.make_model(graph, opset_imports=opsets, ir_version=10)

    def read(self, arrays):
        return (convert.from_onnx(self.cell, arrays),)

    def write(self, layers):
        return convert.to_onnx(self.cell, *layers)


class OnnxRuntime(OnnxReference):
    """In float32: its recurrent operators have no float64."""

    dtype = "float32"
    # Sums of some ten terms, tanh and sigmoid by rational approximations.
    tolerance = 2e-6

    def _evaluate(self, model, inputs):
        library("onnx")
        session = library("onnxruntime").InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        return session.run(None, inputs)
