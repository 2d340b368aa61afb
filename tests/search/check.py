"""Whether a case is as accurate as the scan, against NumPy."""

import dataclasses
import functools
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import expected
from .case import Case
from .program import Program

#: In roundings of an array's largest value: errors below are right without a scan.
SURE, SLACK = 4, 8
SEEDS = 6  # tried with a case whose error is suspicious, to tell a fault from chance
FULL = 60_000  # numbers of all arrays, for as many directions as there are numbers


@dataclass
class Errors:
    """Largest errors by name: ours, the scan's, and the largest values."""

    ours: dict[str, float] = field(default_factory=dict)
    scan: dict[str, float] = field(default_factory=dict)
    largest: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, ours, scan, exact, largest=None) -> None:
        exact = np.asarray(exact, np.float64)
        known = np.isfinite(exact)
        if largest is None:
            largest = np.max(np.abs(exact[known]), initial=0)
        new = Errors({name: _error(ours, exact, known)}, {}, {name: float(largest)})
        if scan is not None:
            new.scan[name] = _error(scan, exact, known)
        self.raise_to(name, new)

    def raise_to(self, name: str, other: "Errors") -> None:
        """Takes what is larger of an array's errors."""
        for mine, its in (
            (self.ours, other.ours),
            (self.scan, other.scan),
            (self.largest, other.largest),
        ):
            if name in its:
                mine[name] = max(mine.get(name, 0.0), its[name])

    def worse(self, eps: float, *, sure: bool) -> list[str]:
        """A line for each array that is not as accurate as it should be."""
        lines = []
        for name, ours in self.ours.items():
            largest, scan = self.largest[name], self.scan.get(name, 0.0)
            tiny = float(np.finfo(np.float32).tiny)
            bar = (SURE if sure else SLACK) * eps * largest + 2 * scan + tiny
            if not ours <= bar:
                lines.append(
                    f"{name}: error {ours:.3g}, the scan's is {scan:.3g} "
                    f"(largest value {largest:.3g})"
                )
            elif not scan <= 0.03 * largest and eps < 1e-5 and scan > 1e-3:
                lines.append(f"{name}: the scan's error is {scan:.3g} of {largest:.3g}")
        return lines


def _error(values, exact, known) -> float:
    values = np.asarray(values).astype(np.float64)
    if values.shape != exact.shape:
        return float("inf")
    difference = np.abs(values - exact)[known]
    return float(np.max(np.where(np.isnan(difference), np.inf, difference), initial=0))


def fault(case: Case) -> str | None:
    """What is wrong with a case, or None."""
    try:
        ours = _Ours(case)
        wrong = ours.errors(case.seed, scan=None)
    except Exception as error:  # whatever is raised is what was looked for
        return _said(case, error)
    if isinstance(wrong, str):
        return wrong
    eps = float(jnp.finfo(case.dtype).eps)
    if not wrong.worse(eps, sure=True):
        return None
    scan = _scan(case)
    wrong = ours.errors(case.seed, scan)
    if not wrong.worse(eps, sure=False):
        return None
    every = [wrong]
    for n in range(1, SEEDS):  # the same program, other numbers: is it chance?
        if case.known or case.lengths in ("list", "number") or case.resets == "list":
            ours = _Ours(dataclasses.replace(case, seed=case.seed + n))
        more = ours.errors(case.seed + n, scan)
        if isinstance(more, str):
            return more
        every.append(more)
    return _together(case, every, eps)


def _together(case: Case, every: list[Errors], eps: float) -> str | None:
    """What is wrong with the results of several seeds."""
    worst = Errors()
    for each in every:
        for name in each.ours:
            worst.raise_to(name, each)
    lines = worst.worse(eps, sure=False)
    if not lines or not _is_sensitive(case) or any(map(_is_no_number, lines)):
        return "; ".join(lines) or None
    # There a rounding may change much: that is wrong which often is.
    for each in every:
        each.scan, each.largest = worst.scan, worst.largest
    wrong = [each for each in every if each.worse(eps, sure=False)]
    return "; ".join(lines) if 2 * len(wrong) > len(every) else None


def _is_sensitive(case: Case) -> bool:
    """Derivatives at kinks; features nearly equal under layer norm; many layers.

    And second derivatives where inputs are large: of a softsign at 300 the scan's own
    error is 2e-6 with the numbers of one seed and 0.6 with those of another.
    """
    is_cut = case.activation in ("relu", "clipped_relu") or case.clip > 0
    is_cut = is_cut or case.gate_activation == "hard_sigmoid"
    has_kinks = case.derivative != "forward" and (case.cell == "slstm" or is_cut)
    is_normed = case.norm or bool(case.normed)
    is_steep = case.derivative == "second" and case.scale > 30
    return has_kinks or is_steep or is_normed or case.layers > 3


def _is_no_number(line: str) -> bool:
    return "error inf" in line


def _said(case: Case, error: Exception) -> str | None:
    text = f"{type(error).__name__}: {error}"
    refused = [  # what may be refused, with words that say what it is
        (case.zoneout == "scalar", "zoneout"),
        (case.derivative == "jvp" and case.lean, "reserve"),
        (case.derivative == "jvp" and case.lean, "forward-mode"),
        (case.cut and case.derivative != "forward", "constraints"),
        # Of lax.scan itself, where there may be no step.
        (case.cut and case.implementation == "scan", "'t - 1' >= '1'"),
    ]
    if any(may and word in text for may, word in refused):
        return None
    return "error " + text[:600]


def _scan(case: Case) -> Any:
    program = expected.plain(case)
    return program, program.compiled()


class _Ours:
    """A case, compiled once for all seeds."""

    def __init__(self, case: Case):
        self.case, self.program = case, Program(case)
        self.own = None

    def errors(self, seed: int, scan) -> Errors | str:
        """Of the results with the arrays of a seed; or what is wrong with them."""
        case = dataclasses.replace(self.case, seed=seed)
        arrays = Program(case).arrays()
        if self.own is None:
            constants = {n: arrays[n] for n in self.program.constant_shapes}
            self.own = self.program.compiled(constants)
        out = jax.tree.map(np.asarray, self.own(arrays))
        is_split = case.derivative in ("vjp", "grad", "second", "jvp")
        results, gradients = out if is_split else (out, ())
        if case.derivative == "jvp":
            results, gradients = (*results, *gradients), ()
        for value in (*results, *gradients):
            if value.dtype != jnp.dtype(case.dtype):
                return f"a result is of {value.dtype}, not of {case.dtype}"
        return self._compared(case, arrays, results, gradients, scan)

    def _compared(self, case, arrays, results, gradients, scan) -> Errors:
        errors = Errors()
        outer, inner = case.maps[: case.outer], case.maps[case.outer :]
        names = [*self.program.float_shapes, *self.program.constant_shapes]
        named = {n: arrays[n] for n in names}
        for index in expected.indices(outer):
            of = expected.parts(outer, named, index)
            if "cotangents" in arrays:
                of["cotangents"] = tuple(d[index] for d in arrays["cotangents"])
            if "direction" in arrays:
                each = zip(self.program.floats, arrays["direction"], strict=True)
                of["direction"] = tuple(
                    expected.part(n, outer, d, index) for n, d in each
                )
            each = zip(self.program.floats, gradients, strict=False)
            own = {n: g[index] for n, g in each}
            self._element(
                errors, case, inner, of, [r[index] for r in results], own, scan
            )
        return errors

    def _element(self, errors, case, levels, arrays, results, gradients, scan) -> None:
        cotangents = arrays.get("cotangents")
        direction = arrays.get("direction")
        exact = expected.wide(
            {n: a for n, a in arrays.items() if n not in ("cotangents", "direction")}
        )
        theirs, their_gradients = [None] * len(results), {}
        if scan is not None:
            given = {**arrays}
            if direction is not None:  # the scan may have more arguments: prepared
                own = dict(zip(self.program.floats, direction, strict=True))
                given["direction"] = tuple(
                    own.get(n, np.zeros_like(arrays[n])) for n in scan[0].floats
                )
            theirs, their_gradients = expected.by_scan(case, levels, given, *scan)
            theirs = theirs or [None] * len(results)
        u = None
        if direction is not None:
            each = zip(self.program.floats, direction, strict=True)
            u = {n: np.asarray(d, np.float64) for n, d in each if not _constant(n)}
        values = {}
        if results:
            run = functools.partial(expected.run, case, levels)
            found = run({n: a[None] for n, a in exact.items()})
            values = {f"output {n}": v[0] for n, v in found.items()}
            if case.derivative == "jvp":
                rates = expected.oracle.derivatives(run, exact, [u])
                values |= {f"tangent {n}": v[0] for n, v in rates.items()}
        for (name, value), ours, theirs_n in zip(
            values.items(), results, theirs, strict=True
        ):
            errors.add(name, ours, theirs_n, value)
        if gradients:
            self._gradients(
                errors, case, levels, exact, cotangents, u, gradients, their_gradients
            )

    def _gradients(
        self, errors, case, levels, exact, cotangents, u, gradients, theirs
    ) -> None:
        """Along one direction for each array, or, if small, all of them."""
        random = np.random.default_rng(case.seed)
        total = sum(g.size for g in gradients.values())
        is_full = (
            case.derivative != "second"
            and case.seed % 4 == 0
            and total * sum(a.size for a in exact.values()) <= FULL
        )
        ways, owners = [], []
        for name, g in gradients.items():
            if is_full and not _constant(name):
                for n in range(g.size):
                    ways.append({name: np.eye(1, g.size, n).reshape(g.shape)})
                    owners.append(name)
            else:
                way = random.choice([-1.0, 1.0], g.shape)
                ways.append({} if _constant(name) else {name: way})
                owners.append(name)
        if u is None:
            rates = expected.slopes(case, levels, exact, cotangents, ways)
        else:
            args = case, levels, exact, cotangents, u, ways
            rates = expected.curvatures(*args)
        for name, g in gradients.items():
            own = np.array([r for r, o in zip(rates, owners, strict=True) if o == name])
            scan = theirs.get(name)
            wide = np.asarray(g).astype(np.float64)
            if _constant(name):
                errors.add(name, wide, scan, np.zeros(g.shape))
            elif is_full:
                errors.add(name, wide, scan, own.reshape(g.shape))
            else:
                way = next(w for w in ways if name in w)[name]
                errors.add(
                    name,
                    [np.sum(wide * way)],
                    None if scan is None else [np.sum(scan.astype(np.float64) * way)],
                    own,
                    largest=np.sqrt(np.sum(np.square(wide))),
                )


def _constant(name: str) -> bool:
    """Whether an array gets no gradient."""
    return name.startswith(("mask", "zone"))
