"""Calls outside of `jax.jit`.

JAX keeps compiled programs by the identity of the functions in them, and a call makes
functions anew: the body of a scan, the branches by platform. So what a call consists
of is one jitted function of the module, found again by its static arguments. In a
program that is traced it leaves nothing behind but its operations.
"""

import functools
import os
from collections.abc import Callable
from typing import Any

import jax

from prnn_jax._engine import gpu


def compiled_once(static_argnums: tuple[int, ...]) -> Callable:
    """Like `jax.jit`, of a function that is an operation by itself.

    So under `jax.disable_jit`, too: its parts are nothing that a caller could look at.
    """

    def decorate(function: Callable) -> Callable:
        @functools.wraps(function)
        def in_environment(_, *args):
            return function(*args)

        jitted = jax.jit(
            in_environment,
            static_argnums=(0, *(n + 1 for n in static_argnums)),
        )

        @functools.wraps(function)
        def call(*args) -> Any:
            with jax.disable_jit(False):
                return jitted(_environment(), *args)

        return call

    return decorate


def _environment() -> tuple[str | None, ...]:
    """What a program depends on besides its arguments and JAX's own settings."""
    names = gpu.DEVICE_VARIABLE, gpu.GRAPHS_VARIABLE
    return tuple(map(os.environ.get, names))
