"""What a case gives, by NumPy, and by the plainest scan."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from . import oracle
from .case import Case, Map
from .program import Program

Arrays = dict[str, Any]
EPSILON = 1e-6  # of the central difference in second derivatives


def part(name: str, levels, array, index, many: int = 0):
    """An array's part in one element of nested maps; `many` axes are before theirs."""
    for level, n in zip(levels, index, strict=True):
        if name in level.over:
            array = np.take(array, n, -1 if level.last else many)
    return array


def parts(levels, arrays: Arrays, index, many: int = 0) -> Arrays:
    return {name: part(name, levels, a, index, many) for name, a in arrays.items()}


def indices(levels) -> Iterator[tuple[int, ...]]:
    """Of the elements of nested maps."""
    return itertools.product(*(range(level.size) for level in levels))


def outputs(case: Case, arrays: Arrays) -> list[np.ndarray]:
    """y and the states of a call without maps; every array has one more axis first."""
    x = arrays["x"]
    if case.cut:
        x = x[:, 1:] if case.time_major else x[..., 1:, :]
    options = {
        name: getattr(case, name)
        for name in (
            *("bidirectional", "reverse", "merge", "time_major"),
            *("reset_after", "activation", "gate_activation", "cap", "skip", "clip"),
            "normed",
        )
    }
    options |= {n: arrays.get(n) for n in ("lengths", "resets", "mask")}
    if case.zoneout in ("number", "scalar"):
        options["zoneout"] = (0.25,) * len(case.states)
    elif case.zoneout == "tuple":
        tail = [arrays[f"zone_{s}"] for s in case.states[1:] or case.states]
        options["zoneout"] = (*(0.25,) * (len(case.states) > 1), *tail)
    elif case.zoneout:
        options["zoneout"] = (arrays["zone"],) * len(case.states)

    def params(suffix):
        names = ("w_ih", "w_hh", "b_ih", "b_hh", "own")
        return [arrays.get(name + suffix) for name in names]

    def state(pattern, suffix):
        if f"h_{pattern}{suffix}" not in arrays:
            return None
        return tuple(arrays[f"{s}_{pattern}{suffix}"] for s in case.states)

    if case.layers:
        layers = [
            (
                params(s),
                (arrays["scale" + s], arrays["shift" + s]) if case.norm else None,
            )
            for s in case.suffixes
        ]
        state_0 = [state("0", s) for s in case.suffixes] if case.state else None
        to = [state("to", s) for s in case.suffixes] if case.reset_to else None
        skips = {"skip_connections": case.skip_connections}
        y, states = oracle.stack(case.cell, x, layers, state_0, to, **skips, **options)
        if case.stacked:
            first, *rest = states
            states = [first, [np.stack(each, 1) for each in zip(*rest, strict=True)]]
        states = [s for each in states for s in each]
    else:
        options["reset_to"] = state("to", "")
        run = functools.partial(oracle.layer, case.cell, params=params(""), **options)
        if case.inside == "scan":
            y_1, middle = run(x, state_0=state("0", ""))
            y_2, states = run(-x, state_0=middle)
            many = np.broadcast_shapes(y_1.shape, y_2.shape)
            y = np.stack([np.broadcast_to(a, many) for a in (y_1, y_2)], 1)
        else:
            y, states = run(x, state_0=state("0", ""))
    return {"y": [y], "state": [*states]}.get(case.outputs, [y, *states])


def mapped(case: Case, arrays: Arrays, levels: tuple[Map, ...]) -> list[np.ndarray]:
    """The same with some maps, whose axes are before those of the outputs."""
    if not levels:
        return outputs(case, arrays)
    found = [outputs(case, parts(levels, arrays, i, 1)) for i in indices(levels)]
    sizes = tuple(level.size for level in levels)
    if not found:
        shapes = case.output_shapes()
        return [np.zeros((1, *s[len(case.maps) - len(levels) :])) for s in shapes]
    out = []
    for each in zip(*found, strict=True):
        stacked = np.stack(np.broadcast_arrays(*each), 1)
        out.append(stacked.reshape(len(stacked), *sizes, *stacked.shape[2:]))
    return out


def run(case: Case, levels, arrays: Arrays) -> dict[str, np.ndarray]:
    found = mapped(case, arrays, levels)
    return {str(n): v for n, v in enumerate(found)}


def wide(arrays: Arrays) -> Arrays:
    """Floating arrays in float64."""
    out = {}
    for name, a in arrays.items():
        a = np.asarray(a)
        is_whole = np.issubdtype(a.dtype, np.integer) or a.dtype == bool
        out[name] = a if is_whole else a.astype(np.float64)
    return out


def slopes(case: Case, levels, arrays: Arrays, cotangents, directions) -> np.ndarray:
    """Derivatives of the outputs times the cotangents along each direction."""
    of = functools.partial(run, case, levels)
    rates = oracle.derivatives(of, arrays, directions)
    return sum(
        (rates[str(n)] * np.asarray(d, np.float64))
        .reshape(len(directions), np.size(d))
        .sum(1)
        for n, d in enumerate(cotangents)
    )


def curvatures(case, levels, arrays, cotangents, direction, directions) -> np.ndarray:
    """Of the derivative along `direction`, the derivative along each direction."""

    def at(sign: float, along: Arrays):
        moved = {n: a + sign * EPSILON * along.get(n, 0) for n, a in arrays.items()}
        return slopes(case, levels, moved, cotangents, [direction])[0]

    rates = [(at(1, d) - at(-1, d)) / (2 * EPSILON) for d in directions]
    return np.array(rates)


def plain(case: Case) -> Program:
    """One element by `lax.scan`: no map, nothing around, the reserve that is usual."""
    usual = dict.fromkeys(("promotion", "mesh", "symbolic", "host"), "")
    return Program(
        dataclasses.replace(
            case,
            **usual,
            implementation="scan",
            lean=False,
            maps=(),
            outer=0,
            way="quick",
            prepared=False,
            wide=False,
            known=False,
            padding="",
            devices=0,
            shard=(),
            inside="scan" if case.inside == "scan" else "",
            lengths="int32" if case.lengths else "",
            resets="int32" if case.resets else "",
        )
    )


def by_scan(case: Case, levels, arrays: Arrays, program: Program, compiled) -> tuple:
    """Outputs and gradients by name, as `run` with `levels` inside gives them."""
    given = {n: arrays[n] for n in program.arguments if n in arrays}
    for name in {"lengths", "resets"} & set(given):
        given[name] = np.asarray(given[name]).astype(np.int32)
    sizes = tuple(level.size for level in levels)
    found, gradients = [], {}
    for index in indices(levels):
        inner = parts(levels, given, index)
        if "direction" in arrays:
            each = zip(program.floats, arrays["direction"], strict=True)
            inner["direction"] = tuple(part(n, levels, d, index) for n, d in each)
        if case.derivative != "jvp":
            inner["cotangents"] = tuple(d[index] for d in arrays.get("cotangents", ()))
        out = jax.tree.map(np.asarray, compiled(inner))
        if case.derivative in ("forward", "jvp"):
            found.append(out if case.derivative == "forward" else (*out[0], *out[1]))
            continue
        found.append(out[0])
        for name, g in zip(program.floats, out[1], strict=True):
            own = zip(index, levels, strict=True)
            own = tuple(i for i, level in own if name in level.over)
            gradients.setdefault(name, {}).setdefault(own, []).append(g)
    stacked = [
        np.stack(each).reshape(*sizes, *each[0].shape)
        for each in zip(*found, strict=True)
    ]
    joined = {name: _joined(name, levels, each) for name, each in gradients.items()}
    return stacked, joined


def _joined(name: str, levels, each: dict) -> np.ndarray:
    """A gradient, mapped axes where the array has them, summed over the others."""
    sums = {i: functools.reduce(lambda a, b: a + b, every) for i, every in each.items()}
    own = [level for level in levels if name in level.over]

    def join(index: tuple[int, ...]) -> np.ndarray:
        if len(index) == len(own):
            return sums[index]
        level = own[len(index)]
        return np.stack(
            [join((*index, i)) for i in range(level.size)], -1 if level.last else 0
        )

    return join(())
