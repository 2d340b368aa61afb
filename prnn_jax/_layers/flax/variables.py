"""What a caller gives of a module of Linen's, checked; needs no Flax itself."""

from collections.abc import Mapping
from typing import Any

from prnn_jax._given.checks import check


def check_initializers(name: str, **given: Any) -> None:
    """Raises ValueError where an attribute of layer `name` is no initializer."""
    for option, init in given.items():
        is_size = isinstance(init, int)
        hint = "; layers of Linen are not told the size of the input" if is_size else ""
        check(
            callable(init),
            f"{name}: {option} must be an initializer, got {init!r}{hint}.",
        )


def params_of(name: str, variables: Any, wanted: str) -> Any:
    """A module's parameters, of its variables, or of what is in them.

    Args:
      name: of the module, for messages.
      variables: as `init` gives them.
      wanted: a parameter that every such module has.

    Raises:
      ValueError: they are another module's.
    """
    given = variables if isinstance(variables, Mapping) else {}
    inner = given.get("params", given)
    known = isinstance(inner, Mapping)
    came = sorted(map(str, inner)) if known else type(inner).__name__
    check(
        known and wanted in inner,
        f"{name}.to_params: variables must be of the layer, as its init gives them, "
        f"{{'params': {{'{wanted}': ...}}}}, got {came}; of a model with more in it, "
        "give those under the layer's name.",
    )
    return inner
