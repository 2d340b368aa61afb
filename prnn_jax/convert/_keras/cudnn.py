"""The arrays of Keras 2's CuDNNLSTM and CuDNNGRU."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from prnn_jax._given.checks import check


def from_cudnn(op: str, layer: Any, weights: list, converted: str) -> list[np.ndarray]:
    """The arrays of CuDNNLSTM and CuDNNGRU as those of LSTM and GRU.

    Each gate's kernel is cuDNN's `[hidden, input]` under the shape of Keras', its
    recurrent kernel transposed; there are two biases, one after the other.

    Raises:
      ValueError: in the words of `op`: they are none of the `layer`'s kind.
    """
    gates = {"LSTM": 4, "GRU": 3}[converted]
    check(
        len(weights) in (3, 6),
        f"{op}: {layer} must have a kernel, a recurrent kernel and a bias for each "
        f"direction, got {len(weights)} arrays.",
    )
    made: list[np.ndarray] = []
    for first in range(0, len(weights), 3):
        kernel, recurrent, bias = (np.asarray(w) for w in weights[first : first + 3])
        inputs, hidden = len(kernel), len(recurrent)
        shapes = [
            (inputs, gates * hidden),
            (hidden, gates * hidden),
            (2 * gates * hidden,),
        ]
        check(
            [kernel.shape, recurrent.shape, bias.shape] == shapes,
            f"{op}: {layer} must have arrays of the shapes {shapes}, got "
            f"{[kernel.shape, recurrent.shape, bias.shape]}.",
        )
        of_gates = np.split(kernel, gates, 1)
        made.append(np.concatenate([k.reshape(hidden, inputs).T for k in of_gates], 1))
        made.append(np.concatenate([k.T for k in np.split(recurrent, gates, 1)], 1))
        two = bias.reshape(2, -1)
        made.append(two if converted == "GRU" else two.sum(0))
    return made


def to_cudnn(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The inverse of `from_cudnn`; of an LSTM's two biases the second is zero."""
    made: list[np.ndarray] = []
    for first in range(0, len(arrays), 3):
        kernel, recurrent, bias = arrays[first : first + 3]
        gates = recurrent.shape[1] // len(recurrent)
        of_gates = np.split(kernel, gates, 1)
        made.append(np.concatenate([k.T.reshape(k.shape) for k in of_gates], 1))
        made.append(np.concatenate([k.T for k in np.split(recurrent, gates, 1)], 1))
        two = bias if bias.ndim == 2 else np.stack([bias, np.zeros_like(bias)])
        made.append(two.reshape(-1))
    return made
