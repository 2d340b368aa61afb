"""An operation with a function for each platform.

As `lax.platform_dependent`, but for when they are traced: that traces all functions
wherever the operation is, these are traced when a program is lowered, and only those of
its platforms. The scan, which a native call has for other platforms, takes ten times as
long to trace as the call.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import mlir

from prnn_jax._engine.eager import compiled_once

#: Of the platforms that are not named.
DEFAULT = "default"
#: Those that may be: a rule is registered for each.
PLATFORMS = "cpu", "cuda"


def by_platform(
    functions: Mapping[str, Callable], static: tuple, results, *args
) -> Any:
    """What the function of the platform makes of the arguments.

    It has no derivative and no rule for `vmap`: it is for the inside of custom ones.

    Args:
      functions: by platform, `PLATFORMS` or `DEFAULT`: functions of `*static, *args`.
        Where they and `static` are equal, so are calls: outside of a program nothing
        is compiled again.
      static: what is hashable.
      results: a tree of the types of what all of them return.
      args: trees of arrays.

    Raises:
      NotImplementedError: when a program is lowered for a platform without a function.
    """
    leaves, structure = jax.tree.flatten(args)
    types, of_results = jax.tree.flatten(results)
    outputs = _operation.bind(
        *leaves,
        functions=tuple(functions.items()),
        static=static,
        structure=structure,
        types=tuple(types),
    )
    return jax.tree.unflatten(of_results, outputs)


def _types(*_, types, **__):
    return [
        ShapedArray(t.shape, t.dtype) if isinstance(t, jax.ShapeDtypeStruct) else t
        for t in types
    ]


def _lowering(platform: str) -> Callable:
    def lower(context, *operands, functions, static, structure, types):
        by_name = dict(functions)
        function = by_name.get(platform, by_name.get(DEFAULT))
        if function is None:
            raise NotImplementedError(
                'prnn_jax: a program with implementation="native" is for '
                f"{' or '.join(by_name)}, and is compiled for "
                f"{'another platform' if platform == DEFAULT else platform}. Leave "
                "`implementation` out: lax.scan runs where no engine does; "
                "prnn_jax.explain says why there is none."
            )

        def flat(*leaves):
            args = jax.tree.unflatten(structure, leaves)
            return jax.tree.leaves(function(*static, *args))

        return mlir.lower_fun(flat)(context, *operands)

    return lower


@compiled_once(static_argnums=(0,))
def _run(params, *leaves):
    """Outside of a program: in one of its own."""
    return _operation.bind(*leaves, **dict(params))


_operation = Primitive("prnn_by_platform")
_operation.multiple_results = True
_operation.def_abstract_eval(_types)
_operation.def_impl(lambda *leaves, **params: _run(tuple(params.items()), *leaves))
mlir.register_lowering(_operation, _lowering(DEFAULT))
for _platform in PLATFORMS:
    mlir.register_lowering(_operation, _lowering(_platform), platform=_platform)
