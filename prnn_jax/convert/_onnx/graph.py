"""A graph of ONNX as an importer sees it: nodes by name, and what is constant."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

_SINCE = {"DequantizeLinear": 19}
#: What makes zeros of zeros, and an input of parts of it.
MOVE = (
    *("Cast", "Concat", "Expand", "Gather", "Identity", "Reshape", "Slice", "Split"),
    *("Squeeze", "Tile", "Transpose", "Unsqueeze"),
)
#: What is another in each run.
_RANDOM = (
    *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
    *("Bernoulli", "Multinomial"),
)


def numpy_of(tensor: Any) -> np.ndarray:
    """A tensor of ONNX as an array.

    Raises:
      ValueError: its numbers are in another file, which has not been read.
    """
    from onnx import checker, numpy_helper

    try:
        return numpy_helper.to_array(tensor)
    except checker.ValidationError as error:
        raise ValueError(
            f"import_onnx: the numbers of {tensor.name!r} must be in the model, or in "
            f"a file beside it; give the model's path. ONNX says: {error}"
        ) from error


@dataclass(frozen=True)
class Node:
    """A node, with the graph that it is in.

    Attributes:
      name: with those of the nodes and branches around it, as "If_0/then_branch/LSTM".
      proto: the node of ONNX.
      scope: where the names of its inputs are looked up.
      is_written: whether the graph has it in products, sums and activations.
      is_alone: whether such is the only step of its cell.
      changed: a state that is other than the node's own before it is fed back; empty
        if none is.
    """

    name: str
    proto: Any
    scope: "Scope"
    is_written: bool = False
    is_alone: bool = False
    changed: str = ""

    @property
    def op(self) -> str:
        """The public function that reads the graph, for messages."""
        return self.scope.op

    @property
    def place(self) -> "Scope":
        """The graph that the model has it in."""
        outer = self.scope.outer if self.is_written else None
        return outer or self.scope

    def attribute(self, name: str, default: Any = None) -> Any:
        """The value of an attribute; strings as such."""
        from onnx import helper

        for attribute in self.proto.attribute:
            if attribute.name == name:
                value = helper.get_attribute_value(attribute)
                if isinstance(value, list):
                    return [v.decode() if isinstance(v, bytes) else v for v in value]
                return value.decode() if isinstance(value, bytes) else value
        return default

    def input(self, position: int) -> str:
        """The name of an input; empty where there is none."""
        inputs = self.proto.input
        return inputs[position] if position < len(inputs) else ""

    def constant(self, position: int) -> np.ndarray | None:
        """The value of an input, if it is there and the same in every run."""
        name = self.input(position)
        return self.scope.constant(name) if name else None


class Scope:
    """The names of a graph, and of those around it.

    Attributes:
      op: the public function that reads the graph, for messages.
      kept: values that the model keeps from run to run, and what they then are.
    """

    def __init__(
        self,
        graph: Any,
        opsets: Any,
        outer: "Scope | None" = None,
        owner: Any = None,
        op: str = "import_onnx",
        kept: Mapping[str, str] | None = None,
    ):
        self._graph, self._opsets, self._outer = graph, opsets, outer
        self._owner = owner
        self.op = op if outer is None else outer.op
        self.kept = kept or {}
        self._initializers = {one.name: one for one in graph.initializer}
        self._makers = {
            output: node for node in graph.node for output in node.output if output
        }
        self._known: dict[str, np.ndarray | None] = {}
        self._shapes: dict[str, tuple[int, ...]] | None = None

    def nodes(self, prefix: str = "") -> Iterator[Node]:
        """All nodes, those of subgraphs too."""
        for proto in self._graph.node:
            name = proto.name or next((o for o in proto.output if o), proto.op_type)
            yield Node(prefix + name, proto, self)
            for attribute, inner in self.subgraphs(proto):
                yield from inner.nodes(f"{prefix}{name}/{attribute}/")

    def subgraphs(self, proto: Any) -> list[tuple[str, "Scope"]]:
        """Those of a node, by the names of its attributes."""
        return [
            (attribute.name, Scope(graph, self._opsets, self, proto))
            for attribute in proto.attribute
            for graph in (attribute.g, *attribute.graphs)
            if graph.node or graph.output
        ]

    def is_beside(self, other: "Scope") -> bool:
        """Whether both are subgraphs of one node: branches of an If."""
        is_inner = self._owner is not None and self._owner is other._owner
        return is_inner and self is not other

    @property
    def outer(self) -> "Scope | None":
        """The graph around this one."""
        return self._outer

    @property
    def top(self) -> "Scope":
        """The model's own graph."""
        return self if self._outer is None else self._outer.top

    @property
    def loop(self) -> "Scope | None":
        """The body of the Loop or the Scan that this is in."""
        if self.carried is not None:
            return self
        return None if self._outer is None else self._outer.loop

    @property
    def carried(self) -> dict[str, str] | None:
        """Of a Loop's or a Scan's body: its inputs, and what they are a step later.

        None of other graphs.
        """
        if self._owner is None or self._owner.op_type not in ("Loop", "Scan"):
            return None
        inputs = [one.name for one in self._graph.input]
        if self._owner.op_type == "Loop":  # a count and a condition come first
            return dict(zip(inputs[2:], self.outputs[1:], strict=False))
        scanned = Node("", self._owner, self).attribute("num_scan_inputs", 0)
        kept = inputs[: len(inputs) - scanned]
        return dict(zip(kept, self.outputs, strict=False))

    def begins_with(self, name: str) -> "tuple[str, Scope] | None":
        """What a Loop or a Scan gives a value of its body for the first step.

        With the graph that it is in; None of all other values.
        """
        inputs = [one.name for one in self._graph.input]
        if self._owner is not None and name in (self.carried or {}):
            given = self._owner.input
            # A Scan of the oldest kind has lengths before all others.
            place = inputs.index(name) + len(given) - len(inputs)
            return None if self._outer is None else (given[place], self._outer)
        is_here = name in (*inputs, *self._makers, *self._initializers)
        outer = None if is_here else self._outer
        return None if outer is None else outer.begins_with(name)

    def _passed_on(self, name: str) -> np.ndarray | None:
        """A constant that a Loop or a Scan gives each step as it is."""
        begins = self.begins_with(name)
        if begins is None or self.carried is None:
            return None
        later = self.carried[name]
        while later in self._makers and self._makers[later].op_type == "Identity":
            later = self._makers[later].input[0]
        first, outer = begins
        return outer.constant(first) if later == name else None

    @property
    def graph(self) -> Any:
        """The graph of ONNX itself."""
        return self._graph

    @property
    def opsets(self) -> Any:
        """The versions of the operators."""
        return self._opsets

    @property
    def outputs(self) -> list[str]:
        """The names of the graph's results."""
        return [one.name for one in self._graph.output]

    def maker(self, name: str) -> tuple[Any, "Scope"] | None:
        """The node that gives a value, and its scope; None of inputs and constants."""
        if name in self._makers:
            return self._makers[name], self
        is_here = name in self._initializers or any(
            one.name == name for one in self._graph.input
        )
        return None if is_here or self._outer is None else self._outer.maker(name)

    def origin(self, name: str) -> str:
        """What a value is a part of, or is moved from."""
        made = self.maker(name)
        if made is None or made[0].op_type not in MOVE:
            return name
        return made[1].origin(made[0].input[0])

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Of a value, where the model fixes all sizes of it; None of all others."""
        sizes = self.sizes(name)
        return sizes if sizes is not None and all(sizes) else None

    def sizes(self, name: str) -> tuple[int, ...] | None:
        """Of a value's axes, 0 where the model does not fix it; None if unknown."""
        if self._outer is not None:
            return self._outer.sizes(name)
        if self._shapes is None:
            self._shapes = _shapes_of(self._graph, self._opsets)
        return self._shapes.get(name)

    def constant(self, name: str) -> np.ndarray | None:
        """A value that needs no input of the model; None of all others."""
        if name in self._initializers:
            return numpy_of(self._initializers[name])
        if name not in self._makers:
            is_input = any(one.name == name for one in self._graph.input)
            if is_input:
                return self._passed_on(name)
            return None if self._outer is None else self._outer.constant(name)
        if name not in self._known:
            self._known[name] = None  # of a circle
            self._known[name] = self._made(name)
        return self._known[name]

    def _made(self, name: str) -> np.ndarray | None:
        node = self._makers[name]
        is_random = node.op_type in _RANDOM
        if is_random or any(attribute.g.node for attribute in node.attribute):
            return None
        fixed = self._of_fixed_sizes(node)
        if fixed is not None:
            return fixed
        given = {one: self.constant(one) for one in node.input if one}
        if any(value is None for value in given.values()):
            return None
        return self.run(node, given, name)

    def _of_fixed_sizes(self, node: Any) -> np.ndarray | None:
        """What a Shape gives, or is taken out of one, if the model fixes these sizes.

        So PyTorch's exporter writes the width of a gate, of chunk.
        """
        is_part = node.op_type in ("Gather", "Slice")
        made = self.maker(node.input[0]) if is_part else (node, self)
        if made is None or made[0].op_type != "Shape":
            return None
        shape, scope = made
        source = shape.input[0]
        sizes = scope.sizes(source)
        if not sizes:
            return None
        value = scope.run(
            shape, {source: np.broadcast_to(False, sizes)}, shape.output[0]
        )
        if is_part and value is not None:
            options = {one: self.constant(one) for one in node.input[1:] if one}
            if any(option is None for option in options.values()):
                return None
            given = {node.input[0]: value, **options}
            value = self.run(node, given, node.output[0])
        return value if value is not None and value.all() else None

    def run(self, node: Any, given: dict[str, Any], output: str) -> np.ndarray | None:
        """What a node makes of some arrays; None of what ONNX's evaluator has not."""
        from onnx import helper
        from onnx.reference import ReferenceEvaluator

        def typed(name: str, value: Any):
            kind = helper.np_dtype_to_tensor_dtype(np.asarray(value).dtype)
            return helper.make_tensor_value_info(name, kind, None)

        inputs = [typed(name, value) for name, value in given.items()]
        outputs = [helper.make_empty_tensor_value_info(output)]
        graph = helper.make_graph([node], "one", inputs, outputs)
        opsets = self._opsets
        if node.op_type in _SINCE:  # older ones are the same, and not in the evaluator
            opsets = [helper.make_opsetid("", _SINCE[node.op_type])]
        model = helper.make_model(graph, opset_imports=opsets)
        try:
            (made,) = ReferenceEvaluator(model).run([output], given)
        except (NotImplementedError, RuntimeError, TypeError, ValueError, LookupError):
            return None
        return np.asarray(made)


def _shapes_of(graph: Any, opsets: Any) -> dict[str, tuple[int, ...]]:
    """Those of a graph and of those inside of it, as ONNX works them out."""
    from google.protobuf.message import EncodeError
    from onnx import helper, shape_inference

    wrong = shape_inference.InferenceError, EncodeError, RuntimeError, ValueError
    model = helper.make_model(graph, opset_imports=opsets)
    try:
        todo = [shape_inference.infer_shapes(model).graph]
    except wrong:  # contradictory, or too large
        todo = [graph]
    shapes: dict[str, tuple[int, ...]] = {}
    while todo:
        one = todo.pop()
        for value in (*one.input, *one.value_info, *one.output):
            kind = value.type.tensor_type
            if kind.HasField("shape"):
                sizes = tuple(axis.dim_value for axis in kind.shape.dim)
                shapes[value.name] = sizes  # one that is not fixed is 0
        attributes = [a for node in one.node for a in node.attribute]
        todo += [inner for a in attributes for inner in (a.g, *a.graphs) if inner.node]
    return shapes
