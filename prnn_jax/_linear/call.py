"""A call of a cell without a product in a step: what stacks and layers run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from jax import Array

from prnn_jax._call.options import Implementation, Options
from prnn_jax._engine.linear_plan import LinearCellName
from prnn_jax._given import statics
from prnn_jax._given.checks import check
from prnn_jax._linear.table import CELLS, LinearCell


@dataclass(frozen=True)
class LinearCall:
    """Static configuration of such a call; hashable. What `Call` is to the others.

    Attributes:
      cell: its name in the table.
      own: the function's arguments that not all functions have, by name, and values.

    The others are the function's.
    """

    cell: LinearCellName
    own: tuple[tuple[str, Any], ...] = ()
    time_major: bool = False
    reverse: bool = False
    bidirectional: bool = False
    precision: Any = None
    implementation: Implementation | None = None

    @classmethod
    def of(
        cls, op: str, cell: LinearCellName, options: Options, own: Mapping[str, Any]
    ) -> Self:
        """Of a call's options, those that only some functions have apart.

        Raises:
          TypeError: one of these is no option of any function.
          ValueError: an option is none of the cell's; in the words of `op`.
        """
        row = CELLS[cell]
        if options.activation is not None:
            own = {"activation": options.activation, **own}
        for name, value in own.items():
            check(
                name in row.takes,
                f"{op}: {cell} has no {name}, got {value!r}; it has "
                f"{', '.join(row.takes) or 'none'}.",
            )
        for name in _OF_PRODUCTS:
            given, usual = getattr(options, name), getattr(Options, name)
            check(
                given == usual,
                f"{op}: {name} must be {usual!r} for {cell}, which has no product in a "
                f"step, got {given!r}.",
            )
        same = "time_major", "bidirectional"
        flags = {name: statics.flag(op, name, getattr(options, name)) for name in same}
        return cls(
            cell,
            tuple((name, statics.hashable(value)) for name, value in own.items()),
            precision=statics.hashable(options.precision),
            implementation=options.implementation,
            **flags,
        )

    @property
    def table(self) -> LinearCell:
        """The cell's row in the table."""
        return CELLS[self.cell]

    def matrix(self, params: Mapping[str, Any]) -> tuple[str, Any]:
        """What multiplies the input, and its name."""
        name = self.table.names[0]
        return name, params[name]

    def features(self, op: str, params: Mapping[str, Any]) -> int:
        """Units of one direction."""
        del op
        if self.table.unheaded:
            return self.table.input_size(params)
        if self.table.output:
            return params[self.table.output].shape[-1]
        gates = self.table.gates({**self.table.own, **dict(self.own)})
        return self.matrix(params)[1].shape[-1] // gates

    def run(
        self, op: str, x: Any, params: Mapping[str, Any], options: Options
    ) -> tuple[Array, Any]:
        """y and the last state.

        Args:
          op: what runs it; errors, which are in the function's words, note it.
          x: the input.
          params: by name.
          options: what is not static: a state, zoneout (of c alone), what bends a call.
        """
        row, zoneout = self.table, {}
        if options.zoneout is not None:
            (zoneout["zoneout"],) = options.zoneout  # pyright: ignore[reportGeneralTypeIssues]
        same = "lengths", "mask", "masked_y", "resets", "reset_to", "merge"
        try:
            return row.function(
                x,
                **row.bind(params),
                **{row.state: options.state_0},
                **{name: getattr(options, name) for name in same},
                **dict(self.own),
                **zoneout,
                reverse=self.reverse,
                bidirectional=self.bidirectional,
                time_major=self.time_major,
                precision=self.precision,
                implementation=self.implementation,
            )
        except ValueError as error:
            error.add_note(f"It was said of {op}.")
            raise


#: Options that mean nothing where a step has no product.
_OF_PRODUCTS = "gate_activation", "clip", "reset_after", "cap", "skip", "reserve"


def run_linear(
    op: str, call: LinearCall, x: Any, params: Any, options: Options
) -> tuple[Array, Any]:
    """As `_ops.run.run_layer`."""
    return call.run(op, x, params, options)
