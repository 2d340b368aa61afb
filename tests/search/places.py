"""The text of where a case runs: over a mesh of devices, or exported."""

import dataclasses

from .case import Case

TIME, BATCH = 7919, 7907  # stand for the sizes that are not known, as no other number


def mesh(case: Case) -> list[str]:
    """Defines `mesh`, with as many devices for the batch as for the heads."""
    if set(case.shard) == {"batch", "heads"}:
        shape, names = f"({case.devices // 2}, 2)", '("data", "model")'
    else:
        shape = f"({case.devices},)"
        names = '("data",)' if "batch" in case.shard else '("model",)'
    kind = "Explicit" if case.mesh == "explicit" else "Auto"
    kinds = f"(jax.sharding.AxisType.{kind},) * {len(case.shard)}"
    return [
        "P = jax.sharding.PartitionSpec",
        f"mesh = jax.make_mesh({shape}, {names}, axis_types={kinds})",
    ]


def spec(case: Case, name: str) -> str:
    """Of an argument, by the axes that are shared out."""
    data = '"data"' if "batch" in case.shard else "None"
    model = '"model"' if "heads" in case.shard else "None"
    data += ", None" * (len(case.batch) - 1)
    way = "None, " * case.bidirectional
    if name.startswith(("w_", "b_", "own")):
        return f"P({way}{model})" if "heads" in case.shard else "P()"
    if name in ("x", "resets", "y") or name.startswith("zone"):
        steps = f"None, {data}" if case.time_major else f"{data}, None"
        own = name == "y" or name.startswith("zone")
        return f"P({steps}{', ' + model if own else ''})"
    if name == "lengths":
        return f"P({data})"
    if name.startswith(("scale", "shift")):
        return "P()"
    return f"P({way}{data}, {model})"  # states, the mask


def shard_map(case: Case, arguments) -> str:
    """`layer`, each device on its part."""
    states = [spec(case, "h_0")] * len(case.states)
    outputs = {"y": [spec(case, "y")], "state": states}
    results = outputs.get(case.outputs, [spec(case, "y"), *states])
    given = ", ".join(spec(case, name) for name in arguments)
    return (
        f"layer = jax.shard_map(layer, mesh=mesh, in_specs=({given},), "
        f"out_specs=({', '.join(results)},))"
    )


def placed(case: Case, arguments) -> list[str]:
    """Statements that put each argument where it belongs."""
    lines = []
    for name in arguments:
        before = "None, " * sum(not level.last for level in case.mapped(name))
        of = spec(case, name).replace("P(", f"P({before}")
        where = f"jax.sharding.NamedSharding(mesh, {of})"
        lines.append(f"{name} = jax.device_put({name}, {where})")
    return lines


def exported(case: Case, names: list[str]) -> list[str]:
    """Statements that make `run` what comes back from bytes."""
    unknown = dataclasses.replace(
        case,
        time=TIME if "t" in case.symbolic else case.time,
        batch=(BATCH,) if "b" in case.symbolic else case.batch,
    )
    shapes = {n: s for n, (s, _) in (unknown.floats() | unknown.constants()).items()}

    def shape(sizes) -> str:
        text = "".join(f"{size}, " for size in sizes)
        text = text.replace(str(TIME + 1), "t").replace(str(BATCH), "b")
        return f"({text.replace(str(TIME), 't - 1' if case.cut else 't')})"

    def of(name: str) -> str:
        if name == "cotangents":
            each = [shape(s) for s in unknown.output_shapes()]
            each = [f"jax.ShapeDtypeStruct({s}, jnp.{case.dtype})" for s in each]
            return f"({', '.join(each)},)"
        return f"jax.ShapeDtypeStruct({shape(shapes[name])}, {name}.dtype)"

    return [
        'b, t = jax.export.symbolic_shape("b, t")',
        f"shapes = ({', '.join(map(of, names))},)",
        "checks = prnn_jax.export_checks()",
        "program = jax.export.export(jax.jit(run), disabled_checks=checks)(*shapes)",
        "run = jit(jax.export.deserialize(program.serialize()).call)",
    ]
