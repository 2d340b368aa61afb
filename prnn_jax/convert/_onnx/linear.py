"""What a value in a graph of ONNX is a sum of: products with constant matrices."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from prnn_jax.convert._onnx.graph import Node, Scope, numpy_of

#: What takes columns out of a value, which are those of its matrices.
_PARTS = "Split", "Slice"
#: What may add or leave out axes of size 1.
_OF_ONES = "Reshape", "Squeeze", "Unsqueeze"
#: Along other axes than the last: what takes parts of these, too, is seen by them.
_ROWS = 5


@dataclass(frozen=True)
class Product:
    """An input times a constant matrix `[in, width]`, called `name`, and its bias."""

    input: str
    weight: Any
    bias: Any
    name: str

    @property
    def width(self) -> int:
        """The columns of the matrix."""
        return self.weight.shape[1]


def products(scope: Scope, value: str | Sequence[str]) -> list[Product]:
    """The products that a value, or several, are the sum of; none of other sums.

    A bias of all is the first one's.
    """
    found: list[Product] = []
    biases: list[np.ndarray] = []
    for term in terms(scope, value) if isinstance(value, str) else value:
        # A product of an h that begins with zeros is known, too, and a product.
        some = _of_term(scope, term)
        found += some
        if not some:
            known = scope.constant(term)
            if known is None:
                return []
            biases.append(known)
    if not found or any(one.width != found[0].width for one in found):
        return []
    first, *others = found
    rows = [_as_row(bias, first.width) for bias in biases]
    given = [] if first.bias is None else [first.bias]
    known_rows = [*(row for row in rows if row is not None), *given]
    if len(known_rows) < len(rows) + len(given):
        return []
    bias = sum(known_rows) if known_rows else None
    return [Product(first.input, first.weight, bias, first.name), *others]


def terms(scope: Scope, name: str, most: int = 16) -> list[str]:
    """What a value is the sum of; itself, if that is more than any cell's."""
    found, todo = [], [(scope, name)]
    while todo and len(found) + len(todo) <= most:
        inner, one = todo.pop()
        made = inner.maker(one)
        if made is None or made[0].op_type != "Add":
            found.append(one)
        else:
            todo += [(made[1], term) for term in reversed(made[0].input)]
    return [name] if todo else found


def side_by_side(parts: Sequence[Product]) -> Product:
    """Products of one input, as one of all columns."""
    weight = np.concatenate([part.weight for part in parts], 1)
    bias = None
    if any(part.bias is not None for part in parts):
        zeros = [np.zeros(part.width, weight.dtype) for part in parts]
        pairs = zip(parts, zeros, strict=True)
        rows = [zero if part.bias is None else part.bias for part, zero in pairs]
        bias = np.concatenate(rows)
    return Product(parts[0].input, weight, bias, parts[0].name)


def _of_term(scope: Scope, name: str) -> list[Product]:
    made = scope.maker(name)
    if made is None:
        return []
    node = Node("", *made)
    if node.proto.op_type in ("Gemm", "MatMul"):
        product = _product(node)
        if product is None or not node.input(2) or node.constant(2) is not None:
            return [] if product is None else [product]
        others = products(made[1], node.input(2))  # a sum, as the bias of a product
        return [product, *others] if others else []
    if node.proto.op_type in _PARTS:
        of_whole = products(made[1], node.input(0))
        parts = [_columns(node, one, name) for one in of_whole]
        return [part for part in parts if part] if all(parts) else []
    if node.proto.op_type in _OF_ONES and _has_same_rows(*made, name):
        return products(made[1], node.input(0))
    return []


def _has_same_rows(node: Any, scope: Scope, name: str) -> bool:
    """Whether a value has the rows of another one, but for axes of size 1."""
    one, two = scope.sizes(node.input[0]), scope.sizes(name)
    if not one or not two or one[-1] != two[-1]:
        return False
    rows = [[size for size in sizes[:-1] if size != 1] for sizes in (one, two)]
    return rows[0] == rows[1] and rows[0].count(0) < 2


def _product(node: Node) -> Product | None:
    weight, bias = node.constant(1), node.constant(2)
    scales = [node.attribute(scale, 1.0) for scale in ("alpha", "beta")]
    is_plain = scales == [1.0, 1.0] and not node.attribute("transA", 0)
    if weight is None or weight.ndim != 2 or not is_plain:
        return None
    weight = weight.T if node.attribute("transB", 0) else weight
    if bias is not None:
        bias = _as_row(bias, weight.shape[1])
        if bias is None:
            return None
    x = _without_ones(node.scope, node.input(0))
    return Product(x, weight, bias, node.input(1))


def _without_ones(scope: Scope, name: str) -> str:
    """A value without the ones that it is times, as of dropout in evaluation."""
    made = scope.maker(name)
    if made is None or made[0].op_type != "Mul":
        return name
    for one, other in (made[0].input, made[0].input[::-1]):
        if _are_ones(made[1], other):
            return _without_ones(made[1], one)
    return name


def _are_ones(scope: Scope, name: str) -> bool:
    known, made = scope.constant(name), scope.maker(name)
    if known is not None or made is None:
        return known is not None and bool((known == 1).all())
    node = Node("", *made)
    if node.proto.op_type == "ConstantOfShape":
        filled = node.attribute("value")
        return filled is not None and bool((numpy_of(filled) == 1).all())
    is_moved = node.proto.op_type in ("Cast", "Expand", "Identity", "Tile")
    return is_moved and _are_ones(made[1], node.input(0))


def _columns(node: Node, whole: Product, name: str) -> Product | None:
    """A product of those columns that a node takes."""
    others = {one: node.scope.constant(one) for one in node.proto.input[1:] if one}
    if any(value is None for value in others.values()):
        return None
    sizes = node.scope.sizes(node.input(0))
    lead = len(sizes) - 1 if sizes else 1
    shape = *((_ROWS,) * lead), whole.width
    places = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    part = node.scope.run(node.proto, {node.input(0): places, **others}, name)
    if part is None or part.ndim != len(shape) or not part.size:
        return None
    columns = part[(0,) * lead].astype(int)
    if columns.max() >= whole.width or not np.array_equal(part, places[..., columns]):
        return None
    bias = None if whole.bias is None else whole.bias[columns]
    return Product(whole.input, whole.weight[:, columns], bias, whole.name)


def _as_row(bias: Any, width: int) -> np.ndarray | None:
    """A bias of so many columns; None if it is not the same in each row of a batch.

    As of an h that is zero in all rows, times weights.
    """
    if bias.ndim == 0 or bias.shape[-1] in (1, width):
        rows = np.broadcast_to(bias, (*bias.shape[:-1], width)).reshape(-1, width)
        if len(rows) and (rows == rows[0]).all():
            return rows[0]
    return None
