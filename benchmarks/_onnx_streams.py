"""LSTM layers in ONNX Runtime, chunk by chunk, also with weights of 8 bits."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from benchmarks._onnx_layers import session_of
from prnn_jax import Params, convert


def is_there() -> bool:
    """Whether the packages are installed."""
    try:
        import onnx  # noqa: F401
        import onnxruntime.quantization  # noqa: F401
    except ImportError:
        return False
    return True


class Stream:
    """A session that keeps the states; x is time-major, as the operators are."""

    def __init__(self, session, layers: int, hidden: int, chunks: Sequence[np.ndarray]):
        self._session, self._chunks, self._calls = session, chunks, 0
        names = [f"{state}_{n}" for n in range(layers) for state in "hc"]
        zeros = np.zeros((1, 1, hidden), np.float32)
        self._state = dict.fromkeys(names, zeros)
        self._outputs = ["y", *(f"{name}_out" for name in names)]

    def __call__(self):
        """y of the chunk and the state after it, as prnn_jax.stack gives them."""
        x = self._chunks[self._calls % len(self._chunks)]
        self._calls += 1
        y, *state = self._session.run(self._outputs, {"x": x, **self._state})
        self._state = dict(zip(self._state, state, strict=True))
        states = [s[0] for s in state]
        return y.swapaxes(0, 1), tuple(zip(states[::2], states[1::2], strict=True))


def stream(
    layers: Sequence[Params], chunks: Sequence, *, int8: bool
) -> Callable[[], Stream]:
    """What begins a stream, of one batch row."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = convert.export_onnx("lstm", layers, time_major=True, state=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model.SerializeToString())
        if int8:
            quantized = path.with_name("int8.onnx")
            # Its products of bytes overflow where there is no VNNI, of 8 bits.
            options_of_weights = {"per_channel": True, "reduce_range": True}
            quantize_dynamic(
                path, quantized, weight_type=QuantType.QInt8, **options_of_weights
            )
            path = quantized
        session = session_of(path.read_bytes())
    given = [np.ascontiguousarray(np.swapaxes(chunk, 0, 1)) for chunk in chunks]
    hidden = layers[0].w_hh.shape[0]
    return lambda: Stream(session, len(layers), hidden, given)
