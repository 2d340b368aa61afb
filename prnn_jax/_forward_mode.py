"""Forward-mode differentiation: an error that says what to do instead.

The native engines have a backward pass and no tangents. JAX's own message, for a
function with a custom derivative, cannot know of `implementation="scan"`; so the inputs
of a call pass through an identity whose tangent may be transposed but not computed.
"""

import jax
from jax import Array
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

_MESSAGE = (
    "prnn_jax: forward-mode differentiation (jax.jvp, jacfwd, hessian, or the function "
    "that jax.linearize returns) does not go through the native engines; pass "
    'implementation="scan" for it. Reverse mode (grad, vjp, jacrev, of any order) does.'
)


def reverse_mode_only(tree):
    """The arrays of a tree, as they are."""
    return jax.tree.map(_guarded, tree)


def _guarded(x: Array) -> Array:
    if not jax.numpy.issubdtype(x.dtype, jax.numpy.floating):
        return x
    return _identity.bind(x)


def _refuse(*_, **__):
    raise TypeError(_MESSAGE)


# The identity, and the map of its tangents.
_identity, _tangent = Primitive("prnn_identity"), Primitive("prnn_tangent")

for _primitive in (_identity, _tangent):
    _primitive.def_abstract_eval(lambda aval: aval)
    batching.defvectorized(_primitive)

_identity.def_impl(lambda x: x)
mlir.register_lowering(_identity, lambda ctx, x: [x])
ad.primitive_jvps[_identity] = lambda primals, tangents: (
    _identity.bind(*primals),
    tangents[0] if isinstance(tangents[0], ad.Zero) else _tangent.bind(*tangents),
)
_tangent.def_impl(_refuse)
mlir.register_lowering(_tangent, _refuse)
ad.deflinear2(_tangent, lambda cotangent, _: [cotangent])
