"""Which nodes of a graph are a network's layers."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from prnn_jax._given.checks import check
from prnn_jax.convert._onnx.cells import written_cells
from prnn_jax.convert._onnx.chain import Layer, chain
from prnn_jax.convert._onnx.graph import Node, Scope
from prnn_jax.convert._onnx.loops import in_a_loop, unread_loops
from prnn_jax.convert._onnx.nodes import of_layer, operator_of
from prnn_jax.convert._onnx.states import check_known, initial_state
from prnn_jax.convert._onnx.steps import given_back
from prnn_jax.convert._shared.imported import Imported, joined

#: What to do about a model that changes states between steps.
_OWN_STEPS = (
    "No layer does so. Take the cell's weights from its state_dict by from_pytorch, "
    "and write its steps with prnn_jax.define_cell or lax.scan."
)


def network(
    scopes: Sequence[Scope],
    name: str | Sequence[str] | None,
    missing: str,
    layer: Callable[[Layer], Imported] = of_layer,
) -> Imported:
    """The network of a model, in the words of its importer.

    Args:
      scopes: the model's graphs.
      name: as `import_onnx` takes it.
      missing: what to say of a model without a recurrent node.
      layer: what makes a network of a node, or of two that are its directions.

    Raises:
      ValueError: there is none, or not one; or the model does something else.
    """
    op = scopes[0].op
    found = {k: v for scope in scopes for k, v in recurrent_nodes(scope).items()}
    nodes = [node for scope in scopes for node in scope.nodes()]
    check(len(found) > 0, f"{op}: {missing}")
    layers = _chosen(op, found, name)
    if name is None:
        _check_all_read(op, found, nodes)
    members = [node for both in layers for node in both if node]
    _check_same_lengths(members)
    for node in members:
        _check_unchanged(node)
        if name is None:
            check_known(node)
            _check_given_back(node)
    return joined(op, [layer(one) for one in layers])


def recurrent_nodes(scope: Scope) -> dict[str, Node]:
    """LSTM, GRU and RNN of a graph by name: nodes, and cells that are written out."""
    nodes = list(scope.nodes())
    found = [node for node in nodes if operator_of(node) is not None]
    found = [*found, *written_cells(nodes)]
    changed = [node.changed or in_a_loop(node, found) for node in found]
    return {
        node.name: replace(node, changed=state)
        for node, state in zip(found, changed, strict=True)
        # The tanh of a sum that the next step does not get is no RNN.
        if not (state and node.is_written and node.proto.op_type == "RNN")
    }


def _chosen(op: str, found: dict[str, Node], name: Any) -> list[Layer]:
    """The layers of a network, the first one first."""
    listed = ", ".join(f"{n!r} ({node.proto.op_type})" for n, node in found.items())
    if name is None:
        if are_one(list(found.values())):
            return [Layer(next(iter(found.values())))]
        layers = chain(list(found.values()))
        nodes = [node for layer in layers for node in layer if node is not None]
        check(
            len(nodes) == len(found),
            f"{op}: name must say which node is meant, one of {listed}.",
        )
        return layers
    names = [name] if isinstance(name, str) else list(name)
    for one in names:
        check(one in found, f"{op}: name must be of {listed}, got {one!r}.")
    return [Layer(found[one]) for one in names]


def _check_all_read(op: str, found: dict[str, Node], nodes: Sequence[Node]) -> None:
    """That a model has no recurrence besides, which is none of ours."""
    others = unread_loops(nodes, found.values())
    names = ", ".join(f"{one!r} ({node.proto.op_type})" for one, node in found.items())
    check(
        not others,
        f"{op}: name must say which node is meant, of {names}, because the model has "
        f"another recurrence, in {', '.join(map(repr, others))}, that is none of an "
        "LSTM, a GRU or an RNN as they are read here.",
    )


def _check_unchanged(node: Node) -> None:
    """That each step of a cell gets the states of the step before as they are."""
    check(
        not node.changed,
        f"{node.op}: each step of {node.name!r} must be given the states of the step "
        f"before as they are, but the model makes {node.changed!r} of them, as a norm "
        f"or zoneout between the steps does. {_OWN_STEPS}",
    )


def _check_given_back(node: Node) -> None:
    """That a model of one step gives back the states of its cell."""
    output = given_back(node)
    check(
        not output,
        f"{node.op}: the model must give back the states after the steps of "
        f"{node.name!r} as they are, got {output!r}, which it makes of them. If that "
        f"is none that the next step is given, name={node.name!r} imports the cell. If "
        f"it is: {_OWN_STEPS}",
    )


def _check_same_lengths(nodes: Sequence[Node]) -> None:
    """That a call's lengths can be those of all."""
    for first, other in itertools.pairwise(nodes):
        check(
            _lengths_of(other) == _lengths_of(first),
            f"{first.op}: layers and directions of one network must have the same "
            f"sequence_lens; {other.name!r} has {other.input(4) or None!r}, "
            f"{first.name!r} has {first.input(4) or None!r}. Import them one by one, "
            "by name.",
        )


def _lengths_of(node: Node) -> str | bytes:
    """What sequence_lens are made of."""
    lengths, name = node.constant(4), node.input(4)
    if lengths is not None:
        return np.asarray(lengths, np.int64).tobytes()
    return node.scope.origin(name) if name else ""


def are_one(nodes: Sequence[Node]) -> bool:
    """Whether nodes are the same one, written in each branch of an If."""
    first, *others = nodes
    pairs = itertools.combinations(nodes, 2)
    return all(_is_same(first, other) for other in others) and all(
        one.place.is_beside(other.place) for one, other in pairs
    )


def _is_same(one: Node, other: Node) -> bool:
    """Whether two nodes compute the same of an x."""
    options = [sorted(map(str, node.proto.attribute)) for node in (one, other)]
    if one.proto.op_type != other.proto.op_type or options[0] != options[1]:
        return False
    for position in (1, 2, 3, 7):
        if not (one.input(position) or other.input(position)):
            continue
        a, b = one.constant(position), other.constant(position)
        if a is None or b is None or not np.array_equal(a, b):
            return False
    for position in (5, 6):
        a, b = initial_state(one, position), initial_state(other, position)
        are_same = a is b if a is None or b is None else np.array_equal(a, b)
        if not are_same:
            return False
    return True
