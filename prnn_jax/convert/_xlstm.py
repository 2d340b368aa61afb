"""sLSTM layers of the packages xlstm and tirex, from whatever has their arrays."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from prnn_jax._call.controls import checked_lengths
from prnn_jax._call.options import Implementation, Lengths, Precision, Reserve
from prnn_jax._cells.normed import LayerNorm, standardised
from prnn_jax._given import checks
from prnn_jax._given.checks import check
from prnn_jax._ops.recurrence import recurrence
from prnn_jax.convert import _arrays
from prnn_jax.convert._imported import check_dtype
from prnn_jax.convert._torch_models import read

_OP = "import_xlstm"
_CELL, _BIAS = "slstm_cell._recurrent_kernel_", "slstm_cell._bias_"
#: The matrices of a_i, a_f, a_z and a_o: the package calls the first two the other way
#: round than its cell takes them.
_GATES = "fgate.weight", "igate.weight", "zgate.weight", "ogate.weight"
_OWN = (*_GATES, _CELL, _BIAS)
_CONV = "conv1d.conv.weight", "conv1d.conv.bias"
_NORM = "group_norm.weight"
#: Of y, with heads in the place of gates.
_OF_HEADS = LayerNorm(over="gate", epsilon=1e-5)
#: Of a module's configuration: what the arrays do not tell, and all that can be.
_USUAL = {"function": "slstm", "forward_clipval": None, "initial_val": 0.0}

State = tuple[Array | None, tuple[Array, Array, Array, Array]]


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["w_ih", "w_hh", "b_hh", "scale", "kernel", "bias"],
    meta_fields=["name"],
)
@dataclass(frozen=True)
class SlstmLayer:
    r"""An sLSTM layer of an xLSTM: its parameters, and a call that runs it.

    .. math::
      x̃_t = \mathrm{silu}(b + \sum_j k_j ∘ x_{t-K+1+j}) \qquad
      a = [x̃ W_i, x̃ W_f, x W_z, x W_o] \qquad
      y = s ∘ N(\mathrm{sLSTM}(a))

    with the recurrence of `prnn_jax.slstm`; :math:`N` makes the mean and variance of
    each head's units 0 and 1. Without a convolution x̃ is x. (Beck et al. 2024,
    arXiv:2405.04517.) A pytree of its parameters; D features are of `heads` heads, each
    of `head`.

    Attributes:
      w_ih: `[heads, head, 4*head]`, the matrices of each head's own part of x, gate
        order i f z o.
      w_hh: `[heads, head, 4*head]`.
      b_hh: `[heads, 4*head]`.
      scale: s, `[D]`, or None for ones.
      kernel: k, `[K, D]`, the last of them of the step itself; or None.
      bias: b, `[D]`, or None.
      name: where in the model it was found; empty for the model itself.
    """

    w_ih: Array
    w_hh: Array
    b_hh: Array
    scale: Array | None = None
    kernel: Array | None = None
    bias: Array | None = None
    name: str = ""

    def __call__(
        self,
        x: ArrayLike,
        state_0: State | None = None,
        *,
        lengths: Lengths | None = None,
        reserve: Reserve = "fast",
        precision: Precision = None,
        implementation: Implementation | None = None,
    ) -> tuple[Array, State]:
        """What the layer computes in evaluation, of a whole sequence or its next part.

        Args:
          x: `[*batch, time, D]`.
          state_0: what an earlier call returned; zeros if not given.
          lengths: `[*batch]`, as in `lstm`.
          reserve: as in `lstm`.
          precision: of products, as in `lstm`.
          implementation: as in `lstm`.

        Returns:
          y `[*batch, time, D]`, and the state: the last K-1 inputs `[*batch, K-1, D]`,
          or None, and `(h, c, n, m)` of `slstm`, each `[*batch, D]`.

        Raises:
          ValueError: shapes, dtypes or options do not fit; says what was expected.
        """
        op = "SlstmLayer"
        x = checks.jax_array(op, "x", x)
        heads, head = self.w_ih.shape[:2]
        wanted = (*x.shape[:-1], heads * head)
        checks.shape(op, "x", x, ("*batch", "time", "features"), wanted)
        checks.same_dtype(op, {"x": x, "w_ih": self.w_ih})
        if lengths is not None:
            lengths = checked_lengths(op, lengths, x.shape[:-2], x.shape[-2])
        before, cell_0 = (None, None) if state_0 is None else state_0
        seen = x
        if self.kernel is not None:
            seen, before = self._convolved(op, x, before, lengths)
        parts = [
            jnp.einsum(
                "...hi,hio->...ho",
                of_x.reshape(*x.shape[:-1], heads, head),
                w,
                precision=precision,
            )
            for of_x, w in zip((seen, x), jnp.split(self.w_ih, 2, -1), strict=True)
        ]
        cell: Any
        y, cell = recurrence(
            "slstm",
            jnp.concatenate(parts, -1).reshape(*x.shape[:-1], -1),
            self.w_hh,
            cell_0,
            b_hh=self.b_hh,
            heads=heads,
            lengths=lengths,
            reserve=reserve,
            precision=precision,
            implementation=implementation,
        )
        y = standardised(y, _OF_HEADS, heads)
        return y if self.scale is None else self.scale * y, (before, cell)

    def _convolved(self, op: str, x: Array, before: Any, lengths: Any):
        """x̃, and the inputs that the next part will see."""
        assert self.kernel is not None
        steps, width = x.shape[-2], len(self.kernel)
        shape = (*x.shape[:-2], width - 1, x.shape[-1])
        if before is None:
            before = jnp.zeros_like(x, shape=shape)
        before = checks.jax_array(op, "state_0[0]", before)
        checks.shape(op, "state_0[0]", before, ("*batch", "K-1", "features"), shape)
        checks.same_dtype(op, {"x": x, "state_0[0]": before})
        x = jnp.concatenate([before, x], -2)
        a = sum(self.kernel[j] * x[..., j : j + steps, :] for j in range(width))
        if lengths is None:
            last = x[..., steps:, :]
        else:
            places = lengths[..., None] + jnp.arange(width - 1)
            last = jnp.take_along_axis(x, places[..., None], -2)
        return jax.nn.silu(a if self.bias is None else a + self.bias), last


def import_xlstm(model: Any, name: str | None = None) -> SlstmLayer:
    """An sLSTM layer of an xLSTM, with all that is around its recurrence.

        layer = prnn_jax.convert.import_xlstm(model, "blocks.1.xlstm")
        y, state = layer(x)             # what the layer computes in evaluation
        y, state = layer(more, state)   # its next steps

    The `sLSTMLayer` of the package xlstm, of either of its backends, which keep the
    weights in different orders, and of TiRex. In both, the weights called `igate` are
    those of the forget gate, and `fgate` of the input gate: so they are taken. Dropout
    after the recurrence is not imported. Arrays alone do not tell the configuration:
    from a state_dict, they are taken as of function="slstm", as it is by default, where
    function="lstm" has the same; of a module it is checked.

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
    _arrays.check_mapping(_OP, "model", model, "a module, a state_dict or a path")
    arrays = _arrays.flat(model, ".")
    found = [key.removesuffix(_CELL) for key in arrays if key.endswith(_CELL)]
    path = _chosen(name, [prefix.removesuffix(".") for prefix in found])
    _check_config(path, getattr(modules.get(path), "config", None))
    prefix = f"{path}." if path else ""
    arrays = {key: arrays.get(prefix + key) for key in (*_OWN, *_CONV, _NORM)}
    return _of_arrays(path, prefix, arrays)


def _chosen(name: str | None, found: list[str]) -> str:
    listed = ", ".join(map(repr, found))
    check(
        len(found) > 0,
        f"{_OP}: the model must have an sLSTM layer, with an array {_CELL}; it has "
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


def _of_arrays(path: str, prefix: str, arrays: Mapping[str, Any]) -> SlstmLayer:
    own = {
        key: _arrays.as_array(_OP, prefix + key, value)
        for key, value in arrays.items()
        if value is not None
    }
    missing = [key for key in _OWN if key not in own]
    check(
        not missing,
        f"{_OP}: {path!r} must have all arrays of an sLSTM layer, "
        f"{', '.join(_OWN)}; it lacks {', '.join(missing)}.",
    )
    for key, value in own.items():
        check_dtype(_OP, prefix + key, value, "model.float() makes it")
    recurrent = own[_CELL]
    check(
        recurrent.ndim == 3 and recurrent.shape[1:] in _layouts(recurrent.shape),
        f"{_OP}: {prefix}{_CELL} must be [heads, head, 4*head] or "
        f"[heads, 4*head, head], got {list(recurrent.shape)}.",
    )
    heads, head = recurrent.shape[0], min(recurrent.shape[1:])
    features = heads * head
    width = own[_CONV[0]].shape[-1] if _CONV[0] in own else 0
    wanted = {
        **dict.fromkeys(_GATES, (("heads", "head", "head"), (heads, head, head))),
        _BIAS: (("4*features",), (4 * features,)),
        _CONV[0]: (("features", "1", "K"), (features, 1, width)),
        _CONV[1]: (("features",), (features,)),
        _NORM: (("features",), (features,)),
    }
    for key in filter(wanted.get, own):
        checks.shape(_OP, prefix + key, own[key], *wanted[key])
    dtype = jnp.result_type(*own.values())
    own = {key: jnp.array(value, dtype) for key, value in own.items()}
    recurrent, bias = own[_CELL], own[_BIAS]
    if recurrent.shape[2] == head:  # outputs before inputs, and gates before heads
        recurrent = recurrent.swapaxes(1, 2)
        bias = bias.reshape(4, heads, head).swapaxes(0, 1)
    kernel = own.get(_CONV[0])
    return SlstmLayer(
        w_ih=jnp.concatenate([own[key].swapaxes(1, 2) for key in _GATES], -1),
        w_hh=recurrent,
        b_hh=bias.reshape(heads, 4 * head),
        scale=1 + own[_NORM] if _NORM in own else None,
        kernel=None if kernel is None else kernel[:, 0].T,
        bias=own.get(_CONV[1]),
        name=path,
    )


def _layouts(shape: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    head = min(shape[1:])
    return (head, 4 * head), (4 * head, head)


def to_xlstm(
    layer: SlstmLayer, backend: Literal["vanilla", "cuda"] = "vanilla"
) -> dict[str, np.ndarray]:
    """A layer's arrays as `sLSTMLayer` of the package xlstm has them in its state_dict.

        arrays = prnn_jax.convert.to_xlstm(layer)
        module.load_state_dict({k: torch.from_numpy(a) for k, a in arrays.items()})

    Args:
      layer: of `import_xlstm`, maybe trained since.
      backend: of the module: its "vanilla" keeps weights in another order than its
        "cuda", whose order is TiRex's, too.

    Returns:
      NumPy's arrays by name.

    Raises:
      ValueError: it is no such layer, or no such backend.
    """
    op = "to_xlstm"
    check(
        isinstance(layer, SlstmLayer),
        f"{op}: layer must be a SlstmLayer, got {type(layer).__name__}.",
    )
    checks.one_of(op, "backend", backend, ("vanilla", "cuda"))
    heads, head = layer.w_ih.shape[:2]
    recurrent, bias = layer.w_hh, layer.b_hh
    if backend == "vanilla":
        recurrent = recurrent.swapaxes(1, 2)
        bias = bias.reshape(heads, 4, head).swapaxes(0, 1)
    gates = jnp.split(layer.w_ih, 4, -1)
    kernel, scale = layer.kernel, layer.scale
    arrays = {
        **{key: w.swapaxes(1, 2) for key, w in zip(_GATES, gates, strict=True)},
        _CELL: recurrent,
        _BIAS: bias.reshape(-1),
        _CONV[0]: None if kernel is None else kernel.T[:, None],
        _CONV[1]: layer.bias,
        _NORM: None if scale is None else scale - 1,
    }
    return {key: np.array(a, order="C") for key, a in arrays.items() if a is not None}
