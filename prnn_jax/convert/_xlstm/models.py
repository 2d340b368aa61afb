"""sLSTM layers of the packages xlstm and tirex, from whatever has their arrays."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

from prnn_jax._given import checks
from prnn_jax._given.checks import check
from prnn_jax.convert._pytorch.models import read
from prnn_jax.convert._shared import named_arrays
from prnn_jax.convert._shared.imported import check_dtype
from prnn_jax.convert._xlstm.layer import SlstmLayer

_OP = "import_xlstm"
_CELL, _BIAS = "_recurrent_kernel_", "_bias_"
#: The matrices of a_i, a_f, a_z and a_o: the package calls the first two the other way
#: round than its cell takes them.
_GATES = "fgate.weight", "igate.weight", "zgate.weight", "ogate.weight"
_CONV = "conv1d.conv.weight", "conv1d.conv.bias"
_NORM = "group_norm.weight"


@dataclass(frozen=True)
class _Form:
    """What differs between the layers.

    Attributes:
      cell: what is before the names of the cell's arrays.
      epsilon: of the norm.
      ones: what is added to the norm's weight.
    """

    cell: str
    epsilon: float
    ones: float

    @property
    def own(self) -> tuple[str, ...]:
        """The arrays that all such layers have."""
        return (*_GATES, self.cell + _CELL, self.cell + _BIAS)


_XLSTM, _TIREX_2 = _Form("slstm_cell.", 1e-5, 1), _Form("", 1e-6, 0)
#: Of a module's configuration: what the arrays do not tell, and all that can be.
_USUAL = {"function": "slstm", "forward_clipval": None, "initial_val": 0.0}
_USUAL |= {"recurrent_shape": "HPGD", "bias_shape": "HGD"}  # of TiRex-2


def import_xlstm(model: Any, name: str | None = None) -> SlstmLayer:
    """An sLSTM layer of an xLSTM, with all that is around its recurrence.

        layer = prnn_jax.convert.import_xlstm(model, "blocks.1.xlstm")
        y, state = layer(x)             # what the layer computes in evaluation
        y, state = layer(more, state)   # its next steps

    The `sLSTMLayer` of the package xlstm, of either of its backends, which keep the
    weights in different orders, of TiRex and of TiRex-2. In all, the weights called
    `igate` are those of the forget gate, and `fgate` of the input gate: so they are
    taken. Dropout after the recurrence is not imported. Arrays alone do not tell the
    configuration: from a state_dict, they are taken as of function="slstm", as it is by
    default, where function="lstm" has the same; of a module it is checked.

    Args:
      model: a module that has such a layer, or is one; its state_dict (also a
        checkpoint with one inside); or the path of a file of `torch.save` or
        safetensors.
      name: which layer, where there are several: the path before `igate.weight`.

    Returns:
      The layer, with its parameters as JAX's arrays, all of one dtype.

    Raises:
      ValueError: there is no such layer, or there are several and `name` says none of
        them; arrays are missing or do not fit together; the module computes something
        else. Says what was found, and where.
      FileNotFoundError: there is no such file.
    """
    if isinstance(model, (str, Path)):
        model = read(Path(model), _OP)
    modules: dict[str, Any] = {}
    if hasattr(model, "named_modules"):
        modules = dict(model.named_modules())
        model = model.state_dict()
    named_arrays.check_mapping(_OP, "model", model, "a module, a state_dict or a path")
    arrays = named_arrays.flat(model, ".")
    forms = _forms(arrays)
    path = _chosen(name, [*forms])
    form = forms[path]
    _check_config(path, getattr(modules.get(path), "config", None))
    prefix = f"{path}." if path else ""
    arrays = {key: arrays.get(prefix + key) for key in (*form.own, *_CONV, _NORM)}
    return _of_arrays(path, prefix, form, arrays)


def _forms(arrays: Mapping[str, Any]) -> dict[str, _Form]:
    """The layers by their paths."""
    forms = {}
    for key in arrays:
        for form in (_XLSTM, _TIREX_2):
            own = form.cell + _CELL
            if key == own or key.endswith(f".{own}"):
                forms[key.removesuffix(own).removesuffix(".")] = form
                break
    return forms


def _chosen(name: str | None, found: list[str]) -> str:
    listed = ", ".join(map(repr, found))
    check(
        len(found) > 0,
        f"{_OP}: the model must have an sLSTM layer, with an array "
        f"{_XLSTM.cell + _CELL}; it has "
        "none.",
    )
    check(
        name is not None or len(found) == 1,
        f"{_OP}: name must say which layer is meant, one of {listed}.",
    )
    name = found[0] if name is None else name
    check(name in found, f"{_OP}: name must be one of {listed}, got {name!r}.")
    return name


def _check_config(path: str, config: Any) -> None:
    for option, usual in _USUAL.items():
        value = getattr(config, option, usual)
        check(
            value == usual,
            f"{_OP}: {path!r} must have {option}={usual!r}, got {value!r}; "
            "prnn_jax.recurrence with cells of its own computes others.",
        )


def _of_arrays(
    path: str, prefix: str, form: _Form, arrays: Mapping[str, Any]
) -> SlstmLayer:
    own = {
        key: named_arrays.as_array(_OP, prefix + key, value)
        for key, value in arrays.items()
        if value is not None
    }
    missing = [key for key in form.own if key not in own]
    check(
        not missing,
        f"{_OP}: {path!r} must have all arrays of an sLSTM layer, "
        f"{', '.join(form.own)}; it lacks {', '.join(missing)}.",
    )
    for key, value in own.items():
        check_dtype(_OP, prefix + key, value, "model.float() makes it")
    cell, of_cell = form.cell + _CELL, form.cell + _BIAS
    shape = own[cell].shape
    check(
        shape[1:] in _layouts(form, shape),
        f"{_OP}: {prefix}{cell} must be [heads, head, 4*head] or "
        f"[heads, 4*head, head], of TiRex-2 [heads, head, 4, head], got {list(shape)}.",
    )
    heads, head = shape[0], min(shape[1], shape[-1])
    features = heads * head
    width = own[_CONV[0]].shape[-1] if _CONV[0] in own else 0
    biases = ("4*features",), (4 * features,)
    if form is _TIREX_2:
        biases = ("heads", "4", "head"), (heads, 4, head)
    wanted = {
        **dict.fromkeys(_GATES, (("heads", "head", "head"), (heads, head, head))),
        of_cell: biases,
        _CONV[0]: (("features", "1", "K"), (features, 1, width)),
        _CONV[1]: (("features",), (features,)),
        _NORM: (("features",), (features,)),
    }
    for key in filter(wanted.get, own):
        checks.shape(_OP, prefix + key, own[key], *wanted[key])
    dtype = jnp.result_type(*own.values())
    own = {key: jnp.array(value, dtype) for key, value in own.items()}
    recurrent, bias = own[cell], own[of_cell]
    if recurrent.shape[1:] == (4 * head, head):  # outputs first, gates before heads
        recurrent = recurrent.swapaxes(1, 2)
        bias = bias.reshape(4, heads, head).swapaxes(0, 1)
    kernel = own.get(_CONV[0])
    return SlstmLayer(
        w_ih=jnp.concatenate([own[key].swapaxes(1, 2) for key in _GATES], -1),
        w_hh=recurrent.reshape(heads, head, 4 * head),
        b_hh=bias.reshape(heads, 4 * head),
        scale=form.ones + own[_NORM] if _NORM in own else None,
        kernel=None if kernel is None else kernel[:, 0].T,
        bias=own.get(_CONV[1]),
        name=path,
        epsilon=form.epsilon,
    )


def _layouts(form: _Form, shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """What may follow the axis of heads of a cell's matrices."""
    head = min(shape[1:2] + shape[-1:], default=0)
    if form is _TIREX_2:
        return ((head, 4, head),)
    return (head, 4 * head), (4 * head, head)


def to_xlstm(
    layer: SlstmLayer, backend: Literal["vanilla", "cuda", "flashrnn"] | None = None
) -> dict[str, np.ndarray]:
    """A layer's arrays as `sLSTMLayer` of the package xlstm has them in its state_dict.

        arrays = prnn_jax.convert.to_xlstm(layer)
        module.load_state_dict({k: torch.from_numpy(a) for k, a in arrays.items()})

    Args:
      layer: of `import_xlstm`, maybe trained since.
      backend: of the module: xlstm's "vanilla" keeps weights in another order than its
        "cuda", whose order is TiRex's, too; "flashrnn" is the layer of TiRex-2. None:
        "flashrnn" for a layer that is of such a one, else "vanilla".

    Returns:
      NumPy's arrays by name.

    Raises:
      ValueError: it is no such layer, or no such backend, or the backend's norm is
        another.
    """
    op = "to_xlstm"
    check(
        isinstance(layer, SlstmLayer),
        f"{op}: layer must be a SlstmLayer, got {type(layer).__name__}.",
    )
    is_usual = layer.epsilon == _XLSTM.epsilon
    backend = backend or ("vanilla" if is_usual else "flashrnn")
    checks.one_of(op, "backend", backend, ("vanilla", "cuda", "flashrnn"))
    form = _TIREX_2 if backend == "flashrnn" else _XLSTM
    check(
        layer.epsilon == form.epsilon,
        f"{op}: layer.epsilon must be {form.epsilon:g} for the backend {backend!r}, "
        f"got {layer.epsilon:g}.",
    )
    heads, head = layer.w_ih.shape[:2]
    recurrent, bias = layer.w_hh, layer.b_hh
    if backend == "vanilla":
        recurrent = recurrent.swapaxes(1, 2)
        bias = bias.reshape(heads, 4, head).swapaxes(0, 1)
    bias = bias.reshape(-1)
    if form is _TIREX_2:
        recurrent = recurrent.reshape(heads, head, 4, head)
        bias = bias.reshape(heads, 4, head)
    gates = jnp.split(layer.w_ih, 4, -1)
    kernel, scale = layer.kernel, layer.scale
    arrays = {
        **{key: w.swapaxes(1, 2) for key, w in zip(_GATES, gates, strict=True)},
        form.cell + _CELL: recurrent,
        form.cell + _BIAS: bias,
        _CONV[0]: None if kernel is None else kernel.T[:, None],
        _CONV[1]: layer.bias,
        _NORM: None if scale is None else scale - form.ones,
    }
    if form is _TIREX_2:
        arrays[_CELL.strip("_")] = recurrent  # the same tensor, by both names
    return {key: np.array(a, order="C") for key, a in arrays.items() if a is not None}
