"""Forward-mode differentiation: an error that says what to do instead.

The native engines and the lean backward pass have no tangents, nor has a step that
clips gradients. JAX's own message, for a function with a custom derivative, cannot know
of `implementation="scan"`; so the inputs of a call pass through an identity whose
tangent may be transposed but not computed. So do its outputs, and what is transposed
passes through the same: then the tangent of a cotangent is known, too. Nothing else
transposes the identity than what transposes a backward pass, which is a tangent again.
"""

import jax
from jax import Array
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from prnn_jax._call.call import Call

_MESSAGE = (
    "prnn_jax: forward-mode differentiation (jax.jvp, jacfwd, hessian, the function "
    "that jax.linearize returns, or jax.linear_transpose of what jax.vjp returns) does "
    "not go through {}; pass {} for it. Reverse mode (grad, vjp, jacrev, of any order) "
    "does."
)


def reverse_mode_only(call: Call, tree):
    """The arrays of a tree, as they are; of a call that has no tangents."""
    through, instead = "the native engines", ['implementation="scan"']
    if call.lean:
        through, instead = 'reserve="lean"', [*instead, 'reserve="fast"']
    if call.implementation == "scan":
        instead = instead[1:]
    if call.clips_gradients:
        through, instead = "Clip(gradients=...)", [*instead, "gradients=None"]
    return _with_message(through, instead, tree)


def elementwise_reverse_mode_only(implementation: str | None, tree):
    """The same of a recurrence without a product, which the scan alone can."""
    if implementation == "scan":
        return tree
    through = "recurrences without a product in a step"
    return _with_message(through, ['implementation="scan"'], tree)


def _with_message(through: str, instead: list[str], tree):
    message = _MESSAGE.format(through, " and ".join(instead))
    return jax.tree.map(lambda x: _guarded(x, message), tree)


def _guarded(x: Array, message: str) -> Array:
    if not jax.numpy.issubdtype(x.dtype, jax.numpy.inexact):
        return x
    return _identity.bind(x, message=message)


def _refuse(*_, message: str, **__):
    raise TypeError(message)


# The identity, and the map of its tangents.
_identity, _tangent = Primitive("prnn_identity"), Primitive("prnn_tangent")

for _primitive in (_identity, _tangent):
    _primitive.def_abstract_eval(lambda aval, **_: aval)

batching.defvectorized(_identity)
_identity.def_impl(lambda x, **_: x)
mlir.register_lowering(_identity, lambda ctx, x, **_: [x])
ad.primitive_jvps[_identity] = lambda primals, tangents, **message: (
    _identity.bind(*primals, **message),
    tangents[0]
    if isinstance(tangents[0], ad.Zero)
    else _tangent.bind(*tangents, **message),
)
_tangent.def_impl(_refuse)
batching.primitive_batchers[_tangent] = _refuse
mlir.register_lowering(_tangent, _refuse)


def _transposed(cotangent, _, **message):
    return [_identity.bind(cotangent, **message)]


ad.deflinear2(_tangent, _transposed)
ad.primitive_transposes[_identity] = _refuse
