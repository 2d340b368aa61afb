"""What `jax.export` must be told of this package."""

from jax import export

from prnn_jax._engine.ffi import TARGETS
from prnn_jax._given.params import BidirectionalParams, MultiHeadParams, Params

for _type in (Params, BidirectionalParams, MultiHeadParams):
    export.register_namedtuple_serialization(
        _type, serialized_name=f"prnn_jax.{_type.__name__}"
    )


def export_checks() -> list[export.DisabledSafetyCheck]:
    """The safety checks of `jax.export` that native calls need disabled.

    JAX does not know how stable a custom call is: it refuses to export one unless told
    that this is meant. Ours check what they are given: a program that another version
    of the package cannot run gets an error, not wrong numbers. So:
    ``jax.export.export(f, disabled_checks=prnn_jax.export_checks())(*shapes)``.

    A program for `platforms=["cpu", "cuda"]` holds the native call of both, and one for
    any other platform `lax.scan`. Time and batch may be symbolic. Whoever loads it
    imports `prnn_jax` first, for its targets. Without a GPU, programs are made for the
    one that the environment variable PRNN_CUDA_DEVICE names.
    """
    return [export.DisabledSafetyCheck.custom_call(name) for name in TARGETS]
