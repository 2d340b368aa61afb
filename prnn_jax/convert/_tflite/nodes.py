"""A recurrent operator of LiteRT as a network of one layer."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from prnn_jax._cells.activations import Activation, GivenActivation
from prnn_jax._cells.clip import Clip
from prnn_jax._cells.normed import LayerNorm
from prnn_jax._given.checks import check
from prnn_jax._given.params import BidirectionalParams, Params
from prnn_jax._ops.normed import normed
from prnn_jax.convert._onnx.chain import Layer
from prnn_jax.convert._onnx.graph import Node
from prnn_jax.convert._onnx.nodes import network as of_node
from prnn_jax.convert._onnx.nodes import of_directions
from prnn_jax.convert._shared.directions import stack_directions
from prnn_jax.convert._shared.imported import Imported
from prnn_jax.convert._tflite.fused import BASIC_STATES, KINDS, is_basic
from prnn_jax.convert._tflite.graph import Fused

_OP = "import_tflite"
#: By the schema's number.
_ACTIVATIONS: dict[int, GivenActivation] = {
    0: "linear",
    1: "relu",
    2: "hard_tanh",
    3: Activation("clipped_relu", 6.0),
    4: "tanh",
}
_NAMES = dict(enumerate(("NONE", "RELU", "RELU_N1_TO_1", "RELU6", "TANH")))
_OF_NONE = ", of which LiteRT's LSTM takes numbers that nothing has written"
#: How an LSTM of LiteRT normalises the sums of its gates, where it does.
_NORM = LayerNorm(of="sum", over="gate", c=None, epsilon=1e-8)
#: What an LSTM's direction has, from its first weights on: of x, of h, peepholes,
#: biases, the projection and its bias.
_OF_X, _OF_H, _PEEPHOLES, _BIASES = range(4), range(4, 8), range(8, 11), range(11, 15)
_PROJECTION, _PROJECTION_BIAS, _COUNT = 15, 16, 17
_GAINS = range(20, 24)
#: The bias of the kernel that has one matrix: i g f o.
_BASIC_ORDER = 0, 2, 1, 3


def of_layer(layer: Layer, fused: Mapping[str, Fused]) -> Imported:
    """Of one node, or of two that are its directions."""

    def network(node: Node) -> Imported:
        one = None if node.is_written else fused.get(node.name)
        return of_node(node) if one is None else _Reader(node, one).network()

    return of_directions(layer, network)


class _Reader:
    """Of one operator."""

    def __init__(self, node: Node, fused: Fused):
        self._node, self._fused = node, fused
        self._where = f"the operator {node.name!r} ({fused.operator.kind})"
        self._kind = KINDS[fused.operator.kind]
        self._option = fused.operator.option

    def network(self) -> Imported:
        """The operator as a layer."""
        number = self._option("FusedActivationFunction")
        known = {n: one for n, one in _ACTIVATIONS.items() if n or not self._is_lstm}
        check(
            number in known,
            f"{_OP}: {self._where} must have an activation of "
            f"{', '.join(_NAMES[n] for n in known)}, got "
            f"{_NAMES.get(number, number)}{_OF_NONE if number == 0 else ''}.",
        )
        options: dict[str, Any] = {"activation": _ACTIVATIONS[number]}
        cell: Any = "rnn"
        if not self._is_lstm:
            sides = [self._rnn(1 + 4 * n if n else 1, n) for n in self._directions]
        elif is_basic(self._fused):
            cell, sides = "lstm", [self._basic()]
            options["state_0"] = self._basic_state()
        else:
            cell = "lstm"
            sides = [self._lstm(1 + n * _COUNT, n) for n in self._directions]
            options["clip"] = self._clip(sides[0])
        gains = self._gains(len(sides[0].w_ih[0]) // 4) if cell == "lstm" else None
        if gains is not None:
            self._check_normed(sides[0], options)
            cell, sides = (
                normed("lstm", _NORM),
                [sides[0]._replace(peepholes=jnp.asarray(gains))],
            )
        layer = stack_directions(*sides) if len(sides) == 2 else sides[0]
        return Imported(
            layers=(layer,),
            cell=cell,
            name=self._node.name,
            places=(self._node.name,),
            bidirectional=isinstance(layer, BidirectionalParams),
            time_major=not self._node.attribute("layout", 0),
            **options,
        )

    @property
    def _is_lstm(self) -> bool:
        return self._kind.cell == "LSTM"

    @property
    def _directions(self) -> range:
        return range(2 if self._kind.both_ways else 1)

    # ---- arrays ----------------------------------------------------------------------

    def _array(self, place: int, *shape: int | None) -> np.ndarray | None:
        """An input's numbers, of these sizes; None where there is none."""
        tensor = self._fused.tensor(place)
        if tensor is None:
            return None
        made = self._node.scope.maker(tensor.name)
        is_sparse = made is not None and made[0].op_type == "DENSIFY"
        fault = tensor.fault or ("sparse" if is_sparse else "")
        check(
            not fault,
            f"{_OP}: {tensor.name!r}, input {place} of {self._where}, is {fault}, "
            "which is not read here; convert the model without that.",
        )
        value = self._node.scope.constant(tensor.name)
        check(
            value is not None,
            f"{_OP}: {tensor.name!r}, input {place} of {self._where}, must be "
            "constant and in the file; it depends on the model's input, or is in "
            "another file.",
        )
        value = np.asarray(value)
        check(
            np.issubdtype(value.dtype, np.floating),
            f"{_OP}: {tensor.name!r}, input {place} of {self._where}, must be floats, "
            "or integers with a scale, got integers without.",
        )
        fits = value.ndim == len(shape) and all(
            wanted in (None, size)
            for wanted, size in zip(shape, value.shape, strict=True)
        )
        check(
            fits,
            f"{_OP}: {tensor.name!r}, input {place} of {self._where}, must be "
            f"[{', '.join('any' if n is None else str(n) for n in shape)}], got "
            f"{list(value.shape)}.",
        )
        return value.astype(np.float32)

    def _needed(self, place: int, *shape: int | None) -> np.ndarray:
        value = self._array(place, *shape)
        check(value is not None, f"{_OP}: {self._where} must have an input {place}.")
        return np.asarray(value)

    def _of_x(self, n: int, weights: np.ndarray, aux: np.ndarray | None) -> np.ndarray:
        """Rows of x, and of a second input beside it, of the n-th direction.

        Without weights of its own the second one is the backward direction's x.
        """
        place, inputs = self._kind.aux, self._fused.operator.inputs
        if not 0 <= place < len(inputs) or inputs[place] < 0:
            return weights
        if aux is not None:
            return np.concatenate([weights, aux])
        shape = self._fused.tensors[inputs[0 if n else place]].shape or (0,)
        check(shape[-1] > 0, f"{_OP}: {self._where} must have inputs of known widths.")
        other = np.zeros((shape[-1], weights.shape[1]), np.float32)
        return np.concatenate([other, weights] if n else [weights, other])

    # ---- cells -----------------------------------------------------------------------

    def _rnn(self, first: int, n: int) -> Params:
        recurrent = self._needed(first + 1, None, None)
        hidden = len(recurrent)
        weights = self._needed(first, hidden, None).T
        aux = None
        if self._kind.aux_weights >= 0:
            aux = self._array(self._kind.aux_weights + n, hidden, None)
            self._check_aux_is_read(aux is not None)
        return _params(
            self._of_x(n, weights, None if aux is None else aux.T),
            recurrent.T,
            self._needed(first + 2, hidden),
        )

    def _lstm(self, first: int, n: int) -> Params:
        forget = self._needed(first + 1, None, None)  # as wide as there are units
        hidden, inputs = forget.shape
        projection = self._array(first + _PROJECTION, None, hidden)
        output = hidden if projection is None else len(projection)
        self._check_no_projection_bias(first + _PROJECTION_BIAS, output)
        has_input = self._fused.tensor(first) is not None
        matrices = [
            _gates(self._all(first, places if has_input else places[1:], *sizes))
            for places, sizes in ((_OF_X, (hidden, inputs)), (_OF_H, (hidden, output)))
        ]
        biases = [self._array(first + place, hidden) for place in _BIASES]
        biases = [np.zeros(hidden, "f") if b is None else b for b in biases]
        aux = self._aux(4 * n, hidden, has_input)
        peepholes = [self._array(first + place, hidden) for place in _PEEPHOLES]
        return _params(
            self._of_x(n, matrices[0].T, aux),
            matrices[1].T,
            _gates(biases[0 if has_input else 1 :]),
            peepholes=_peepholes(peepholes, has_input),
            w_hr=None if projection is None else projection.T,
        )

    def _aux(self, first: int, hidden: int, has_input: bool) -> np.ndarray | None:
        """Rows of gates that a second input has for itself, from their place on."""
        begin = self._kind.aux_weights + first
        forget = self._array(begin + 1, hidden, None) if self._kind.both_ways else None
        if forget is None:
            return None
        places = range(begin if has_input else begin + 1, begin + 4)
        return _gates([self._needed(n, *forget.shape) for n in places]).T

    def _all(self, first: int, places: Sequence[int], hidden: int, width) -> list:
        """Matrices of gates; of h a diagonal may stand for one."""
        is_of_h = places[-1] == _OF_H[-1]
        if is_of_h and self._option("DiagonalRecurrentTensors"):
            return [np.diag(self._needed(first + n, hidden)) for n in places]
        return [self._needed(first + place, hidden, width) for place in places]

    def _gains(self, hidden: int) -> np.ndarray | None:
        """Of layer norm, where the operator has it."""
        if self._fused.tensor(_GAINS[1]) is None or self._kind.both_ways:
            return None
        gains = [self._array(place, hidden) for place in _GAINS]
        gains[0] = gains[1] if gains[0] is None else gains[0]
        check(
            all(gain is not None for gain in gains),
            f"{_OP}: {self._where} must have layer norm in all gates, or in none.",
        )
        return np.concatenate([np.asarray(gain) for gain in gains])

    def _basic(self) -> Params:
        hidden = len(self._needed(2, None, None)) // 4
        weights = self._needed(2, 4 * hidden, None)
        check(
            self._option("FusedActivationFunction") == 4,
            f"{_OP}: {self._where} must have the activation TANH, as BASIC has.",
        )
        bias = self._needed(3, 4 * hidden)
        parts = np.split(weights, 4), np.split(bias, 4)
        both, b = (np.concatenate([part[n] for n in _BASIC_ORDER]) for part in parts)
        inputs = both.shape[1] - hidden
        return _params(both[:, :inputs].T, both[:, inputs:].T, b)

    def _basic_state(self) -> tuple[Any, ...] | None:
        tensors = [self._fused.tensor(place) for place in BASIC_STATES]
        states = [self._node.scope.constant(t.name) if t else None for t in tensors]
        known = [state for state in states if state is not None]
        if len(known) < len(states) or not any(state.any() for state in known):
            return None
        return (tuple(jnp.asarray(state, jnp.float32) for state in known),)

    # ---- options ---------------------------------------------------------------------

    def _clip(self, params: Params) -> Clip | None:
        """Bounds of c and of a projected h; of 0 there are none."""
        of_c, of_h = (self._option(name) for name in ("CellClip", "ProjClip"))
        of_h = of_h if params.w_hr is not None else 0
        if of_c <= 0 and of_h <= 0:
            return None
        bounds = (None if bound <= 0 else float(bound) for bound in (of_c, of_h))
        state, projection = bounds
        return Clip(state=state, projection=projection)

    def _check_aux_is_read(self, has_weights: bool) -> None:
        has_aux = self._fused.tensor(self._kind.aux) is not None
        check(
            not has_aux or has_weights == self._node.attribute("layout", 0),
            f"{_OP}: {self._where} must have weights of its second input with batch "
            "first, and none with time first: of the others LiteRT's backward "
            "direction reads the wrong input.",
        )

    def _check_no_projection_bias(self, place: int, output: int) -> None:
        bias = self._array(place, output)
        check(
            bias is None or not bias.any(),
            f"{_OP}: {self._where} must have no bias of its projection, or zeros; "
            "prnn_jax's LSTM has none there.",
        )

    def _check_normed(self, params: Params, options: Mapping[str, Any]) -> None:
        """That the operator has layer norm alone, as prnn_jax has it."""
        had = {
            "peepholes": params.peepholes is not None,
            "a projection": params.w_hr is not None,
            "clips": options["clip"] is not None,
            "another activation than TANH": options["activation"] != "tanh",
        }
        both = [name for name, is_there in had.items() if is_there]
        check(
            not both,
            f"{_OP}: {self._where} has layer norm and {' and '.join(both)}, which "
            "prnn_jax's LSTM does not have together.",
        )


def _gates(parts: Sequence[Any]) -> np.ndarray:
    """Of four gates; of three, the input gate is 1 - f, which is σ of -a_f."""
    parts = parts if len(parts) == 4 else [-parts[0], *parts]
    return np.concatenate(parts)


def _peepholes(parts: Sequence[Any], has_input: bool) -> np.ndarray | None:
    """Of i, f and o; None where all are zero, which is as good and faster."""
    known = [part for part in parts if part is not None]
    if not any(part.any() for part in known):
        return None
    zeros = np.zeros_like(known[0])
    i, f, o = (zeros if part is None else part for part in parts)
    return np.concatenate([i if has_input else -f, f, o])


def _params(*arrays: Any, **others: Any) -> Params:
    """Of NumPy's arrays."""
    return jax.tree.map(jnp.asarray, Params(*arrays, **others))
