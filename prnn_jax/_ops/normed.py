"""Cells with layer norm inside of their steps."""

import functools
from typing import Any, Literal

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from prnn_jax._cells.normed import LayerNorm, step_of
from prnn_jax._cells.table import CELLS, Cell
from prnn_jax._given import checks
from prnn_jax._given.checks import check
from prnn_jax._ops.define import DefinedCell

_OP, _USUAL = "normed", LayerNorm()


class NormedCell(DefinedCell):
    """A cell made by `normed`: a function like `prnn_jax.lstm`, as a `DefinedCell`.

    Attributes:
      name: "layer_norm_lstm" or "layer_norm_gru".
      norm: how it normalises.
    """

    def __init__(self, name: str, row: str, norm: LayerNorm):
        super().__init__(name, row)
        self.norm = norm

    def __reduce__(self) -> Any:
        """A cell is pickled, and copied, by what it was made of."""
        return normed, (CELLS[self.row].base, self.norm)

    def __repr__(self) -> str:
        return f"normed({CELLS[self.row].base!r}, {self.norm})"

    def gains(self, **parts: ArrayLike) -> Array:
        """The cell's own numbers of units, for `Params.peepholes`, from their parts.

        Args:
          **parts: all that `normed` lists for the cell, by name, each `[n*hidden]`, or
            with the leading axes of `Params`.

        Returns:
          `[per_unit*hidden]`, with these axes.

        Raises:
          ValueError: a part is missing or unknown, or of another size than the rest.
        """
        own = CELLS[self.row].own
        names = [name for name, _, _ in own]
        check(
            set(parts) == set(names),
            f"{self.name}.gains: the parts must be {', '.join(names)}, got "
            f"{', '.join(parts) or 'none'}.",
        )
        arrays = [checks.jax_array(self.name, n, parts[n]) for n in names]
        hidden = arrays[0].shape[-1] // own[0][1] if arrays[0].ndim else 0
        for array, (name, count, _) in zip(arrays, own, strict=True):
            wanted = (*arrays[0].shape[:-1], count * hidden)
            checks.shape(
                f"{self.name}.gains", name, array, ("...", f"{count}*hidden"), wanted
            )
        return jnp.concatenate(arrays, -1)


def normed(cell: Literal["lstm", "gru"], norm: LayerNorm = _USUAL) -> NormedCell:
    r"""The LSTM, or the GRU, with layer norm inside of its steps.

    With :math:`N(a) = (a - μ) / \sqrt{σ^2 + ε}` along the units of a row,
    pre-activations (Ba et al. 2016, arXiv:1607.06450) are

    .. math::
      a = γ_x N(x W_{ih}) + b_{ih} + γ_h N(h W_{hh}) + b_{hh}

    in place of :math:`x W_{ih} + b_{ih} + h W_{hh} + b_{hh}`, or with
    `LayerNorm(of="sum")` :math:`a = γ N(x W_{ih} + h W_{hh}) + b_{ih} + b_{hh}`. In the
    GRU r multiplies its share of the second half, :math:`γ_h N(h W_{hh}) + b_{hh}`,
    with :math:`β_n` added. The LSTM's c is normalised, too,

    .. math:: c' = f c + i \tanh(a_g) \quad h' = o \tanh(γ_c N(c') + β_c)

    and with `LayerNorm(c="state")` c' is handed on so.

        cell = prnn_jax.normed("lstm")
        params = cell.init(jax.random.key(0), 80, 256)
        y, (h, c) = cell(x, params, lengths=lengths)

    It has all that a cell of `define_cell` has: it stands for a cell's name in `stack`,
    `recurrence`, `init` and `explain`, and `layer_of` of `prnn_jax.nnx`, `linen`,
    `equinox` and `keras` gives its layer. With heads, each normalises its own units. In
    16 bits, means and variances are in float32. For the backward pass an LSTM's unit
    keeps 13 numbers a step besides h (9 of the sum), a GRU's 9; with `reserve="lean"`
    c alone, or nothing.

    Args:
      cell: "lstm" or "gru".
      norm: what is normalised, and how.

    Returns:
      The cell; the same for equal arguments. Its own numbers of units,
      `Params.peepholes`, are, one after the other (`gains` makes them of their parts):
      `x` and `h` [gates*hidden], :math:`γ_x` and :math:`γ_h`, or, of the sum, `sum`;
      where c is normalised, `c` and `c_shift` [hidden], :math:`γ_c` and :math:`β_c`;
      of the GRU `n_shift` [hidden], :math:`β_n`. Gains begin with 1, shifts with 0.

    Raises:
      ValueError: an unknown cell or option, or one that the GRU has not.
    """
    checks.one_of(_OP, "cell", cell, ("lstm", "gru"))
    check(
        isinstance(norm, LayerNorm),
        f"{_OP}: norm must be a prnn_jax.LayerNorm, got {norm!r}.",
    )
    checks.one_of(_OP, "of", norm.of, ("parts", "sum"))
    checks.one_of(_OP, "over", norm.over, ("gates", "gate"))
    checks.one_of(_OP, "c", norm.c, ("output", "state", None))
    epsilon = norm.epsilon
    check(
        isinstance(epsilon, (int, float)) and 0 < epsilon < 1,
        f"{_OP}: epsilon must be a number between 0 and 1, got {epsilon!r}.",
    )
    for name in ("of", "c"):
        usual = getattr(_USUAL, name)
        check(
            cell == "lstm" or getattr(norm, name) == usual,
            f"{_OP}: {name} must be {usual!r}, or left out, for the gru, "
            f"got {getattr(norm, name)!r}.",
        )
    return _made(cell, norm)


@functools.cache
def _made(cell: Literal["lstm", "gru"], norm: LayerNorm) -> NormedCell:
    plain, name = CELLS[cell], f"layer_norm_{cell}"
    gates = plain.gates
    own = [("x", gates, 1.0), ("h", gates, 1.0)]
    if norm.of == "sum":
        own = [("sum", gates, 1.0)]
    if cell == "gru":
        own += [("n_shift", 1, 0.0)]
    elif norm.c is not None:
        own += [("c", 1, 1.0), ("c_shift", 1, 0.0)]
    row = f"{name} {norm}"
    CELLS[row] = Cell(
        name,
        name,  # pyright: ignore[reportArgumentType]
        plain.gate_names,
        plain.state_names,
        (3 if norm.of == "parts" else 2) * gates,
        step_of(cell, norm),
        same_gradient=False,
        described=f"the {cell.upper()} with layer norm",
        norm=norm,
        base=cell,
        own=tuple(own),
    )
    return NormedCell(name, row, norm)
