"""A program of its own, on 8 CPU devices: calls under all kinds of meshes.

Prints a line for each: the collectives and native calls of the compiled program, and
its largest error against one device. tests/test_sharding.py runs and reads it.
"""

import functools
import json
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
from cases import Case
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

EVERY = ("lengths", "resets", "reset_to", "mask", "zoneout")
CASES = {
    "plain": Case("lstm", 6, (16,), 33),
    "controls": Case(
        "gru", 6, (16,), 17, bidirectional=True, state=True, controls=EVERY
    ),
    "two products": Case("gru_reset_before", 5, (8,), 12, reverse=True),
    "time major": Case("lstm", 34, (8,), 9, heads=4, time_major=True, lean=True),
    "heads": Case("slstm", 5, (8,), 6, heads=4, state=True, controls=EVERY[:-1]),
    "batch axes": Case("rnn_tanh", 4, (8, 3), 10, controls=EVERY),
    "large": Case("lstm", 16, (64,), 129, 256),  # XLA's projection
}
COLLECTIVES = "all-gather", "all-reduce", "all-to-all", "collective-permute"


def run(case: Case, implementation, x, others, controls=None):
    return case.run({**others, **(controls or {}), "x": x}, implementation)


def loss(case: Case, implementation, x, others, controls=None):
    y, state = run(case, implementation, x, others, controls)
    return jnp.sum(jnp.sin(y)) + sum(jnp.sum(s * s) for s in state)


def report(mesh: str, name: str, direction: str, function, args, expected) -> None:
    compiled = jax.jit(function).lower(*args).compile()
    text = compiled.as_text()
    counts = {
        kind: len(re.findall(rf" {kind}(?:-start)?\(", text)) for kind in COLLECTIVES
    }
    pairs = zip(
        jax.tree.leaves(compiled(*args)), jax.tree.leaves(expected), strict=True
    )
    error = max(float(np.max(np.abs(np.asarray(a) - np.asarray(b)))) for a, b in pairs)
    calls = re.findall(r'custom_call_target="(prnn_[a-z]+)"', text)
    line = {
        "mesh": mesh,
        "case": name,
        "direction": direction,
        "collectives": {kind: n for kind, n in counts.items() if n},
        "forward": calls.count("prnn_forward"),
        "backward": calls.count("prnn_backward"),
        "error": error,
    }
    print(json.dumps(line), flush=True)


def both(mesh: str, name: str, case: Case, args, expected) -> None:
    forward = functools.partial(run, case, None)
    gradient = jax.grad(functools.partial(loss, case, None), (0, 1))
    weights = jax.grad(functools.partial(loss, case, None), 1)
    report(mesh, name, "forward", forward, args, expected[0])
    report(mesh, name, "gradient", gradient, args, expected[1])
    if case.heads:  # of the weights alone: nothing is summed over heads
        report(mesh, name, "gradient of weights", weights, args, expected[1][1])


def put(mesh, spec: P, tree):
    return jax.device_put(tree, NamedSharding(mesh, spec))


def placed(case: Case, mesh, x, others):
    """x, states and controls by batch, weights everywhere."""
    lead = (None,) * case.time_major
    x = put(mesh, P(*lead, "data"), x)
    by_batch = P(*(None,) * case.bidirectional, "data")
    specs = {
        n: by_batch if n[:2] in ("h_", "c_", "n_", "m_", "re") else P() for n in others
    }
    others = {n: put(mesh, specs[n], v) for n, v in others.items()}
    specs = {"lengths": P("data"), "recurrent_mask": by_batch}
    controls = {
        n: put(mesh, specs.get(n, P(*lead, "data")), v)
        for n, v in case.control_arrays().items()
    }
    return x, others, controls


def by_heads(case: Case, mesh, x, others):
    """x by batch, states by batch and heads, weights by heads."""
    x = put(mesh, P(*(None,) * case.time_major, "data"), x)
    specs = {n: P("data", "model") for n in others if n[0] != "w" and n[0] != "b"}
    return x, {n: put(mesh, specs.get(n, P("model")), v) for n, v in others.items()}


def main() -> None:
    for name in sys.argv[1:] or CASES:
        case = CASES[name]
        others = case.inputs()
        x = others.pop("x")
        expected = (
            run(case, "scan", x, others),
            jax.grad(functools.partial(loss, case, "scan"), (0, 1))(x, others),
        )
        auto = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
        both("auto", name, case, placed(case, auto, x, others), expected)
        for kind in (AxisType.Auto, AxisType.Explicit) if case.heads else ():
            grid = jax.make_mesh((2, 4), ("data", "model"), axis_types=(kind,) * 2)
            with jax.set_mesh(grid):
                args = by_heads(case, grid, x, others)
                both(f"{kind.name.lower()}, heads", name, case, args, expected)
        explicit = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Explicit,))
        with jax.set_mesh(explicit):
            both("explicit", name, case, placed(case, explicit, x, others), expected)


if __name__ == "__main__":
    main()
