"""A graph of another format on its way to one of ONNX."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

#: As new as all that is made.
OPSET = 17
#: A bound of a Slice that means all that there is.
ALL = np.iinfo(np.int64).max


def must(holds: bool, otherwise: str) -> None:
    """What holds of each file that is whole.

    Raises:
      ValueError: it does not.
    """
    if not holds:
        raise ValueError(otherwise)


def why_unread(constants: Iterable[Any]) -> str:
    """What may be why no cell is seen: those of the constants that have a `fault`."""
    faulty = [one for one in constants if one.fault]
    if not faulty:
        return ""
    first, *others = faulty
    more = f" and {len(others)} more" if others else ""
    return (
        f" {first.name!r}{more}: {first.fault}, which is not read here; convert the "
        "model without that."
    )


@dataclass(kw_only=True)
class Making:
    """What has been made of a graph.

    Attributes:
      label: what the names of values of its own begin with.
      domain: of operators that are not ONNX's.
      nodes: of ONNX, in order.
      constants: by name.
      shapes: sizes by name, of values that the file has not.
      given: names of values that come from outside, besides the inputs.
    """

    label: str = ""
    domain: str = ""
    nodes: list[Any] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    shapes: dict[str, Sequence[int]] = field(default_factory=dict)
    given: list[str] = field(default_factory=list)

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        """The name of a new constant."""
        name = f"{self.label}/constant#{len(self.constants)}"
        self.constants[name] = np.asarray(value, dtype)
        return name

    def add(self, kind: str, inputs: Sequence[str], output: str = "", **options) -> str:
        """A node of one output, which is called anew if not told."""
        output = output or f"{self.label}/value#{len(self.nodes)}"
        return self.add_all(kind, inputs, [output], **options)[0]

    def add_all(
        self, kind: str, inputs: Sequence[str], outputs: Sequence[str], **options: Any
    ) -> Sequence[str]:
        """A node of several outputs.

        Raises:
          ValueError: there are no such operators, of so many inputs or outputs.
        """
        from onnx import defs, helper

        if options.get("domain") != self.domain:
            schema = defs.get_schema(kind, OPSET, "")
            fits = (
                schema.min_input <= len(inputs) <= schema.max_input
                and schema.min_output <= len(outputs) <= schema.max_output
            )
            must(fits, f"{kind} of {len(inputs)} inputs, {len(outputs)} outputs")
        name = options.pop("name", outputs[0] if outputs else kind)
        node = helper.make_node(kind, list(inputs), list(outputs), name=name, **options)
        self.nodes.append(node)
        return outputs

    def flipped(self, x: str, axes: np.ndarray, output: str) -> None:
        """A value from its end to its beginning."""
        count = axes.size
        starts, ends = np.full(count, -1), np.full(count, -ALL)
        bounds = [starts, ends, axes.reshape(-1), np.full(count, -1)]
        inputs = [x, *(self.constant(bound) for bound in bounds)]
        self.add("Slice", inputs, output)

    def strided(
        self,
        names: Sequence[str],
        values: Sequence[np.ndarray | None],
        has: Sequence[Sequence[bool]],
        output: str,
    ) -> bool:
        """A StridedSlice, as TensorFlow has it; whether that can be said.

        Args:
          names: of x, and of where the parts begin, end, and how far they are apart.
          values: of the last three, where they are known.
          has: for each axis whether all counts to the beginning, to the end, and
            whether one is taken, which leaves no axis.
          output: its name.
        """
        (x, begin, end, strides), (first, last, steps) = names, values
        if steps is None:
            return False
        count = len(steps)
        if first is None or last is None:
            if any(has[0]) or any(
                is_all and not is_one for _, is_all, is_one in zip(*has, strict=True)
            ):
                return False
            if any(has[2]):  # whose end of such an axis says nothing
                end = self.add("Add", [begin, self.constant(np.ones(count))])
        else:
            starts = [
                (0 if step > 0 else ALL) if is_all else int(n)
                for n, step, is_all in zip(first, steps, has[0], strict=True)
            ]
            ends = [
                (ALL if step > 0 else -ALL) if is_all else int(n)
                for n, step, is_all in zip(last, steps, has[1], strict=True)
            ]
            for n in range(count):
                if has[2][n]:
                    ends[n] = starts[n] + 1 or ALL
            begin, end = self.constant(starts), self.constant(ends)
        inputs = [x, begin, end, self.constant(np.arange(count)), strides]
        shrunk = [n for n in range(count) if has[2][n]]
        if not shrunk:
            self.add("Slice", inputs, output)
            return True
        self.add("Squeeze", [self.add("Slice", inputs), self.constant(shrunk)], output)
        return True

    def graph(
        self,
        name: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        known: Mapping[str, Sequence[int] | None],
    ) -> Any:
        """The graph of ONNX.

        Args:
          known: sizes by name, -1 where they are not fixed, of what the file has.
        """
        from onnx import TensorProto, helper, numpy_helper

        def value(name: str, shape: Sequence[int] | None = None) -> Any:
            sizes = None if shape is None else [None if n < 0 else n for n in shape]
            return helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes)

        known = {**known, **self.shapes}
        return helper.make_graph(
            self.nodes,
            name or "graph",
            [value(name, known.get(name)) for name in inputs],
            [value(name, known.get(name)) for name in outputs],
            [numpy_helper.from_array(a, name) for name, a in self.constants.items()],
            value_info=[
                value(name, shape)
                for name, shape in known.items()
                if shape is not None and name not in {*inputs, *outputs}
            ],
        )
