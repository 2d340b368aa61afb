"""The program that a case is: text, which is run and which is shown."""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import equinox
import flax.nnx
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from support import quick_jit

import prnn_jax
import prnn_jax.equinox
import prnn_jax.linen
import prnn_jax.nnx

from . import body, places
from .case import Case

HELPERS = {
    "draw": (
        "def draw(shape, scale=0.5):\n"
        "    return np.asarray(scale * rng.standard_normal(shape)).astype(dtype)"
    ),
    "positive": (
        "def positive(shape):\n"
        "    return np.asarray(0.5 + abs(rng.standard_normal(shape))).astype(dtype)"
    ),
    "flags": (
        "def flags(shape, share):\n"
        "    return np.asarray(rng.random(shape) < share).astype(dtype)"
    ),
    "shares": (
        "def shares(shape):\n    return np.asarray(rng.random(shape)).astype(dtype)"
    ),
}
POLICIES = {
    "checkpoint": "",
    "checkpoint_saved": (
        ", policy=jax.checkpoint_policies.save_only_these_names(prnn_jax.SAVED)"
    ),
    "checkpoint_everything": ", policy=jax.checkpoint_policies.everything_saveable",
    "checkpoint_dots": ", policy=jax.checkpoint_policies.dots_saveable",
}
CONTEXTS = {
    "strict": 'jax.numpy_dtype_promotion("strict")',
    "rank": 'jax.numpy_rank_promotion("raise")',
}


class Program:
    """Text that makes the arrays of a case, and text that makes `run` of them."""

    def __init__(self, case: Case):
        self.case = case
        self.float_shapes, self.constant_shapes = case.floats(), case.constants()
        weights = ("w_ih", "w_hh", "b_ih", "b_hh", "own")
        self.floats = [
            name
            for name in self.float_shapes
            if not (case.prepared and name.startswith(weights))
        ]
        self.constants = [] if case.known else [*self.constant_shapes]
        self.constants += ["packed" + s for s in case.suffixes if case.prepared]
        self.arguments = [*self.floats, *self.constants]

    # ---- arrays ----------------------------------------------------------------------

    def data(self) -> str:
        """Makes every array, and the cotangents, with the seed of the case."""
        case, lines = self.case, []
        for name, (shape, kind) in {
            **self.float_shapes,
            **self.constant_shapes,
        }.items():
            lines.append(f"{name} = {kind.format(case.full_shape(name, shape))}")
        if case.lengths and case.batch:
            lines.append("lengths.flat[1:2] = 0")
        if case.padding and not case.maps:
            lines += self._padding()
        outputs = ", ".join(f"draw({shape})" for shape in case.output_shapes())
        if case.derivative != "forward":
            lines.append(f"cotangents = ({outputs},)")
        if case.derivative in ("second", "jvp"):
            names = ", ".join(f"draw({name}.shape)" for name in self.floats)
            lines.append(f"direction = ({names},)")
        lines += self._prepared()
        text = "\n".join(lines)
        helpers = [h for name, h in HELPERS.items() if f"{name}(" in text]
        head = f"rng, dtype = np.random.default_rng({case.seed}), jnp.{case.dtype}"
        return "\n".join([head, *helpers, text])

    def _padding(self) -> list[str]:
        case = self.case
        if case.padding == "x":
            sequence = "np.moveaxis(x, 0, -2)" if case.time_major else "x"
            steps = f"np.arange({-int(case.cut)}, {case.time})"
            return [f"{sequence}[{steps} >= lengths[..., None]] = np.nan"]
        states = [n for n in self.float_shapes if n[1:3] == "_0"]
        if case.padding == "state":
            return [f"{name}[..., lengths == 0, :] = np.nan" for name in states]
        first = case.time - 1 if case.reverse else 0
        step = f"resets[{first}]" if case.time_major else f"resets[..., {first}]"
        return [f"{step} = 1", *(f"{name}[...] = np.nan" for name in states)]

    def _prepared(self) -> list[str]:
        case, lines = self.case, []
        for suffix in case.suffixes if case.prepared else ():
            options = f"batch={max(case.seed % 5, 1)}, time={max(case.time, 1)}"
            if case.bidirectional:
                options += ", bidirectional=True"
            if not case.reset_after:
                options += ", reset_after=False"
            params = body.params_of(case, suffix, self.float_shapes)
            given = f"{body.cell_of(case)}, {params}, {options}"
            lines.append(f"packed{suffix} = prnn_jax.prepare({given})")
        return lines

    # ---- the call --------------------------------------------------------------------

    def call(self) -> str:
        """Defines `call`, with everything that is inside of a derivative."""
        case = self.case
        names = ", ".join(self.arguments)
        lines = [
            f"def layer({names}):",
            *(f"    {line}" for line in body.body(case, self.float_shapes)),
        ]
        if case.inside in POLICIES:
            lines.append(f"layer = jax.checkpoint(layer{POLICIES[case.inside]})")
        elif case.inside == "jit":
            lines.append("layer = jax.jit(layer)")
        if case.mesh:
            lines = [*places.mesh(case), *lines]
        if case.mesh == "manual":
            lines.append(places.shard_map(case, self.arguments))
        if case.inside == "scan":
            states = [f"{s}_0" for s in case.states]
            rest = [name for name in self.arguments if name not in ("x", *states)]
            state = f"({', '.join(states)},)"
            given = ", ".join(f"{n}={n}" for n in ["x", *states, *rest])
            lines += [
                f"def loop({names}):",
                "    def step(state, x):",
                f"        {state[1:-1]} = state",
                f"        y, *state = layer({given})",
                "        return tuple(state), y",
                f"    state, y = jax.lax.scan(step, {state}, jnp.stack([x, -x]))",
                "    return y, *state",
            ]
        name = "loop" if case.inside == "scan" else "layer"
        lines += self._vmaps(name, "call", case.maps[case.outer :], self.arguments)
        return "\n".join(lines)

    def _vmaps(self, old: str, new: str, levels, names, extra: str = "") -> list[str]:
        """`new = jax.vmap(old)` for each level, innermost first."""
        lines = [] if old == new else [f"{new} = {old}"]
        for level in reversed(levels):
            axis = -1 if level.last else 0
            axes = [str(axis if n in level.over else None) for n in names]
            text = ", ".join(axes)
            if "cotangents" in extra:
                text += ", 0"
            if "direction" in extra:  # one for each floating array
                text += f", ({', '.join(axes[: len(self.floats)])},)"
            lines.append(f"{new} = jax.vmap({new}, in_axes=({text},))")
        return lines

    def derivative(self) -> str:
        """Defines `run` of the arguments, and what follows them."""
        case, n = self.case, len(self.floats)
        extra = {"forward": "", "jvp": ", direction"}.get(
            case.derivative, ", cotangents"
        )
        extra += ", direction" * (case.derivative == "second")
        names = ", ".join(self.floats)
        all_names = ", ".join(self.arguments)
        rest = ", ".join(self.constants)
        rest = f", {rest}" if rest else ""
        head = [
            f"def run({all_names}{extra}):",
            f"    floats = ({names},)",
            f"    f = lambda *floats: call(*floats{rest})",
        ]
        slope = [
            "    def slope(*floats):",
            "        gradients = jax.vjp(f, *floats)[1](cotangents)",
            "        return sum(jnp.sum(g * d) for g, d in zip(gradients, direction))",
        ]
        every = f"tuple(range({n}))"
        lines = {
            "forward": ["run = call"],
            "vjp": [
                *head,
                "    out, vjp = jax.vjp(f, *floats)",
                "    return out, vjp(cotangents)",
            ],
            "grad": [
                *head,
                "    loss = lambda *floats: sum(",
                "        jnp.sum(v * d) for v, d in zip(f(*floats), cotangents))",
                f"    return (), jax.grad(loss, {every})(*floats)",
            ],
            "second": [
                *head,
                *slope,
                f"    return (), jax.grad(slope, {every})(*floats)",
            ],
            "jvp": [*head, "    return jax.jvp(f, floats, direction)"],
        }[case.derivative]
        levels = case.maps[: case.outer]
        lines += self._vmaps("run", "run", levels, self.arguments, extra)
        return "\n".join(lines)

    def way(self) -> tuple[list[str], str, str]:
        """The last lines: statements, what is called, and of what."""
        case = self.case
        extra = {
            "forward": [],
            "jvp": ["direction"],
            "second": ["cotangents", "direction"],
        }
        names = [*self.arguments, *extra.get(case.derivative, ["cotangents"])]
        lines = []
        if case.mesh:
            lines += places.placed(case, self.arguments)
        if case.symbolic:
            lines += places.exported(case, names)
            return lines, "run", ", ".join(names)
        run = {"quick": "jit(run)", "jit": "jax.jit(run)"}.get(case.way, "run")
        return lines, run, ", ".join(names)

    def contexts(self) -> list[str]:
        case = self.case
        out = ["jax.enable_x64(True)"] if case.x64 else []
        out += [CONTEXTS[case.promotion]] if case.promotion else []
        out += ["jax.set_mesh(mesh)"] if case.mesh == "explicit" else []
        return out + ["jax.disable_jit()"] * (case.way == "disable_jit")

    # ---- run and shown ---------------------------------------------------------------

    def arrays(self) -> dict[str, Any]:
        """Every array of the case by name."""
        space = _space()
        with jax.enable_x64(self.case.x64):
            exec(self.data(), space)
        names = [*self.float_shapes, *self.constant_shapes]
        names += [n for n in self.constants if n not in names]
        extra = [n for n in ("cotangents", "direction") if n in space]
        return {name: space[name] for name in [*names, *extra]}

    def compiled(self, known: dict[str, Any] | None = None) -> Callable:
        """`arrays by name -> results`; `known` are those that it is compiled with."""
        space = {**_space(), **(known or {})}
        exec("\n".join([self.call(), self.derivative()]), space)
        lines, run, names = self.way()
        statements = compile("\n".join(lines), "way", "exec")
        once = []

        def of(arrays: dict[str, Any]):
            if self.case.wide:
                arrays = {**arrays}
                exec(self._widening(), {}, arrays)
            space.update((n, arrays[n]) for n in names.split(", "))
            with contextlib.ExitStack() as stack:
                for context in self.contexts():
                    stack.enter_context(eval(context, space))
                if not once or self.case.mesh:
                    exec(statements, space)
                if not once:
                    once.append(eval(run, space))
                out = once[0](*(space[n] for n in names.split(", ")))
                return jax.block_until_ready(out)

        return of

    def _widening(self) -> str:
        names = ", ".join(self.floats)
        return f"{names}, = (a.astype('float64') for a in ({names},))"

    def text(self) -> str:
        """A program of its own."""
        case = self.case
        lines, run, names = self.way()
        run = "jax.jit(run)" if run == "jit(run)" else run
        lines = [self._widening()] * case.wide + lines
        last = [*lines, f"print({run}({names}))"]
        last = [line.replace("= jit(", "= jax.jit(") for line in last]
        contexts = self.contexts()
        if contexts:
            last = [f"with {', '.join(contexts)}:", *(f"    {line}" for line in last)]
        head = ["import jax, jax.numpy as jnp, numpy as np, prnn_jax"]
        if case.devices:
            flag = f"--xla_force_host_platform_device_count={case.devices}"
            head = [f'import os; os.environ["XLA_FLAGS"] = "{flag}"', *head]
        head += [f"import {module}" for module in self._modules()]
        parts = [*head, self.data(), self.call(), self.derivative(), *last]
        return "\n".join(parts)

    def _modules(self) -> list[str]:
        """Besides those of every program."""
        case = self.case
        out = ["jax.export"] * bool(case.symbolic)
        if case.host:
            out += [f"prnn_jax.{case.host}", "equinox", "flax.nnx"]
            out.remove("equinox" if case.host != "equinox" else "flax.nnx")
        return out + ["dataclasses"] * (case.stacked and case.norm)


def _space() -> dict[str, Any]:
    """Names that every program may use."""
    return {
        "jax": jax,
        "jnp": jnp,
        "np": np,
        "prnn_jax": prnn_jax,
        "jit": quick_jit,
        "equinox": equinox,
        "flax": flax,
        "dataclasses": dataclasses,
    }
