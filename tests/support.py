"""Comparison with the oracle, and Python processes of their own."""

import functools
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
from cases import Case
from kept import kept

#: A context in which JAX has float64.
float64 = functools.partial(jax.enable_x64, True)

#: Of the CPU engine, the best first, on processors of every kind.
ISAS = (
    *("amx_bf16", "amx_emulated", "avx512_bf16", "avx512", "avx2"),
    *("neon_bf16", "neon", "portable"),
)


@dataclass(frozen=True)
class Results:
    """What a case computes: forward as `y`, `h_n`, `c_n`, and the gradients by name."""

    forward: dict[str, np.ndarray]
    gradients: dict[str, np.ndarray]


def named(y, state) -> dict[str, jax.Array]:
    return {"y": y, **dict(zip(("h_n", "c_n", "n_n", "m_n"), state, strict=False))}


def _known(options: dict) -> dict:
    """Those of some compiler options that this XLA has."""
    known = {}
    for name, value in options.items():
        try:
            jax.jit(lambda: 0, compiler_options={name: value}).lower().compile()
        except jax.errors.JaxRuntimeError:
            continue
        known[name] = value
    return known


#: `jax.jit` for scans and what surrounds our calls: compiles them in a fifth of the
#: time, to code that is slower and as accurate.
quick_jit = functools.partial(
    jax.jit,
    compiler_options=_known(
        {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
    ),
)


@functools.cache
def _compiled_scan(case: Case, dtype: str):
    def run(arrays, cotangents):
        out, vjp = jax.vjp(lambda a: case.run(a, "scan"), arrays)
        return named(*out), vjp(cotangents)[0]

    return quick_jit(run)


@functools.cache
def scan(case: Case, dtype: str = "float32", output: str | None = None) -> Results:
    """A case by `lax.scan`; cotangents of all outputs but `output` are zero."""
    key = f"{case} {dtype} {output} {_source(type(case))}"
    flat = kept(key, lambda: _flat(_scan(case, dtype, output)))
    trees: tuple[dict, dict] = {}, {}
    for name, value in flat.items():
        kind, _, name = name.partition(" ")
        trees[kind == "gradients"][name] = value
    return Results(*trees)


@functools.cache
def _source(kind: type) -> str:
    """Of a class and of those it derives from."""
    return "".join(map(inspect.getsource, kind.__mro__[:-1]))


def _flat(results: Results) -> dict[str, np.ndarray]:
    return {
        f"{kind} {name}": value
        for kind, values in vars(results).items()
        for name, value in values.items()
    }


def _scan(case: Case, dtype: str, output: str | None) -> Results:
    with jax.enable_x64(dtype == "float64"):
        dy, dstate = case.cotangents(dtype)
        cotangents = named(dy, dstate)
        if output is not None:
            cotangents = {
                name: d if name == output else np.zeros_like(d)
                for name, d in cotangents.items()
            }
        dy, *dstate = cotangents.values()
        run = _compiled_scan(case, dtype)
        results = run(case.inputs(dtype), (dy, tuple(dstate)))
        return Results(*jax.tree.map(np.asarray, results))


def oracle(case: Case, output: str | None = None) -> Results:
    """A case by `lax.scan` in float64."""
    return scan(case, "float64", output)


def error_of(values, oracle) -> float:
    return float(np.max(np.abs(np.asarray(values, np.float64) - oracle), initial=0))


def assert_as_accurate(ours, scan, oracle, roundings: float = 4) -> None:
    """Our largest error is at most twice that of the same scan in float32.

    Args:
      ours: a tree of float32 arrays.
      scan: the same from `lax.scan` in float32.
      oracle: the same from `lax.scan` in float64.
      roundings: of an array's largest value that it is given besides.
    """
    ours, structure = jax.tree_util.tree_flatten_with_path(ours)
    for (path, value), of_scan, exact in zip(
        ours,
        structure.flatten_up_to(scan),
        structure.flatten_up_to(oracle),
        strict=True,
    ):
        name = jax.tree_util.keystr(path)
        assert exact.dtype == np.float64, f"{name}: the oracle must be float64"
        assert value.dtype == of_scan.dtype == np.float32, name
        assert value.shape == of_scan.shape == exact.shape, name
        assert np.isfinite(value).all(), f"{name} has values that are not finite"
        # Where there are few values the scan may be right by chance. So an array is
        # given a few roundings of its largest value beside twice the scan's error.
        largest = np.max(np.abs(exact), initial=0)
        slack = roundings * np.finfo(np.float32).eps * largest
        error, of_scan = error_of(value, exact), error_of(of_scan, exact)
        assert error <= 2 * of_scan + slack, (
            f"{name}: error {error:.3g}, the scan's is {of_scan:.3g} "
            f"(largest value {largest:.3g})"
        )


def assert_follows_scan(run: Callable, arrays: dict[str, np.ndarray]) -> None:
    """`run(implementation, arrays)`, a tree, is as accurate as it is with the scan.

    For what a case alone cannot say: a transformation, a loop, a model around a call.
    """

    scan = quick_jit(functools.partial(run, "scan"))
    ours, of_scan = jax.jit(functools.partial(run, "native"))(arrays), scan(arrays)
    with float64():
        exact = scan(jax.tree.map(lambda a: a.astype(np.float64), arrays))
        exact = jax.tree.map(np.asarray, exact)
    assert_as_accurate(ours, of_scan, exact)


def assert_bitwise_equal(left, right) -> None:
    """All arrays of two trees hold the same bits."""
    left, structure = jax.tree_util.tree_flatten_with_path(left)
    right = structure.flatten_up_to(right)
    for (path, a), b in zip(left, right, strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert a.dtype == b.dtype, jax.tree_util.keystr(path)
        np.testing.assert_array_equal(
            a.view(f"u{a.itemsize}"),
            b.view(f"u{b.itemsize}"),
            err_msg=jax.tree_util.keystr(path),
        )


def run_python(
    script: str | Path, *args: str, timeout_s: float = 120, **environment: str
) -> str:
    """Runs a script (its text, or a file) in a process of its own; what it prints.

    A script that fails or does not end in time fails the test. It may import `cases`
    and `support`.
    """
    path = os.pathsep.join(
        [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    )
    if "XLA_FLAGS" in environment:
        flags = os.environ.get("XLA_FLAGS", ""), environment["XLA_FLAGS"]
        environment["XLA_FLAGS"] = " ".join(flags)
    if "PJRT_NPROC" in environment:  # which JAX's key of a program does not have
        environment["JAX_ENABLE_COMPILATION_CACHE"] = "0"
    code = [str(script)] if isinstance(script, Path) else ["-c", script]
    done = subprocess.run(
        [sys.executable, *code, *args],
        env={**os.environ, "PYTHONPATH": path.rstrip(os.pathsep), **environment},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@dataclass(frozen=True)
class Program:
    """What a compiled program does, as far as the tests ask."""

    text: str

    @classmethod
    def of(cls, function: Callable, *args) -> "Program":
        return cls(jax.jit(function).lower(*args).compile().as_text())

    def count(self, operation: str) -> int:
        """Of an operation, e.g. `while`, or of calls to a native target."""
        if operation.startswith("prnn_"):
            return self.text.count(f'custom_call_target="{operation}"')
        return len(re.findall(rf" {re.escape(operation)}\(", self.text))

    @property
    def calls(self) -> tuple[int, int]:
        """Native calls, forward and backward."""
        return self.count("prnn_forward"), self.count("prnn_backward")
