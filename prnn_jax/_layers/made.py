"""Classes of layers that are made of a cell, so that pickle can make them again."""

import copyreg
import functools
from collections.abc import Callable
from typing import Any

_MADE: dict[type, tuple[Callable, Any]] = {}


def made_class(
    layer_of: Callable, cell: Any, base: type, members: dict[str, Any]
) -> Any:
    """A class of a cell's name that derives from base: what `layer_of(cell)` gives."""
    made = _metaclass(type(base))(cell.name, (base,), members)
    _MADE[made] = layer_of, cell
    return made


@functools.cache
def _metaclass(meta: type) -> type:
    """One whose classes are pickled by what has made them, not by a name."""
    own = type(f"Made{meta.__name__}", (meta,), {"__module__": __name__})
    copyreg.pickle(own, _reduced)
    return own


def _reduced(made: Any) -> tuple[Callable, tuple[Any]]:
    layer_of, cell = _MADE[made]
    return layer_of, (cell,)
