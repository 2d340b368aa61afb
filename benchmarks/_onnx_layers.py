"""ONNX's recurrent operators in ONNX Runtime, forward only."""

import functools

import numpy as np

from benchmarks._points import Arrays, Candidate, Point, threads
from prnn_jax import Params, convert

#: Of the operators, besides hidden_size: ours is not ONNX's default.
_OPTIONS = {
    "lstm": {},
    "gru": {"linear_before_reset": 1},
    "rnn": {"activations": ["Relu"]},
}


def runtime(point: Point, arrays: Arrays) -> Candidate:
    """A call of a session; x is time-major, as the operators are."""
    session = session_of(model(point.cell, arrays.params))
    given = {"X": np.ascontiguousarray(arrays.x.swapaxes(0, 1))}

    def result(out):
        y, *_ = out  # [time, directions, batch, hidden]
        return {"y": y[:, 0].swapaxes(0, 1)}

    return Candidate(lambda: session.run(None, given), result)


def session_of(model: bytes):
    """With a thread for each core.

    They wait for work within a run without sleeping, as they do by default, but not on
    into the turn of another candidate: calls of two threads took up to twice as long
    then.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads()
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.log_severity_level = 3  # errors
    return onnxruntime.InferenceSession(
        model, options, providers=["CPUExecutionProvider"]
    )


def model(cell: str, params: Params) -> bytes:
    """One operator with its weights, as a file has it."""
    import onnx

    name, make = cell.upper(), onnx.helper
    weights = convert.to_onnx(name, params)
    outputs = ["Y", "Y_h", "Y_c"] if cell == "lstm" else ["Y", "Y_h"]
    hidden = params.w_hh.shape[0]
    inputs = ["X", *weights]
    node = make.make_node(name, inputs, outputs, hidden_size=hidden, **_OPTIONS[cell])
    of_float = functools.partial(
        make.make_tensor_value_info, elem_type=onnx.TensorProto.FLOAT, shape=None
    )
    graph = make.make_graph(
        [node],
        name,
        [of_float("X")],
        [of_float(output) for output in outputs],
        [onnx.numpy_helper.from_array(a, w) for w, a in weights.items()],
    )
    opsets = [make.make_opsetid("", 21)]
    built = make.make_model(graph, opset_imports=opsets, ir_version=10)
    return built.SerializeToString()
