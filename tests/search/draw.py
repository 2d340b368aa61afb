"""Cases, as hypothesis draws them."""

import dataclasses

from hypothesis import strategies as st

from .case import Case, Map

LENGTHS = "int32", "int8", "uint8", "int16", "uint16", "uint32", "int64", "uint64"
RESETS = "bool", "int32", "uint8", "int8", "float32", "bfloat16", "float16", "int64"
DTYPES = "float32", "bfloat16", "float16", "float64"
ZONEOUTS = "number", "draws", "bools", "shares", "tuple", "scalar"
WORK = 3_000_000  # multiplications of a case at most


def _sometimes(draw, one_in: int) -> bool:
    """Simplest: no."""
    return draw(st.integers(0, one_in - 1)) == one_in - 1


def _one(draw, *values):
    return draw(st.sampled_from(values))


def _sizes(draw) -> dict:
    kind = draw(st.integers(0, 23))
    time, batch = draw(st.integers(1, 7)), draw(st.lists(st.integers(1, 4), max_size=2))
    hidden, features = draw(st.integers(1, 20)), draw(st.integers(1, 7))
    if kind == 23:  # long
        time, batch, hidden = draw(st.integers(120, 300)), batch[:1], min(hidden, 6)
    elif kind == 22:  # wide
        hidden, batch = draw(st.integers(60, 330)), batch[:1]
        time = min(time, 3)
    elif kind == 21:  # nothing
        what = _one(draw, "time", "batch", "features")
        time = 0 if what == "time" else time
        features = 0 if what == "features" else features
        batch = [0, *batch[:1]] if what == "batch" else batch
    elif kind == 20:  # many rows
        batch = [draw(st.integers(5, 40))]
    elif kind == 19:  # enough steps for the chunks of the lean reserve
        time, hidden = draw(st.integers(30, 70)), min(hidden, 8)
    elif kind == 18:
        features = draw(st.integers(8, 300))
    return {
        "time": time,
        "batch": tuple(batch),
        "hidden": hidden,
        "input_size": features,
    }


def _cell(draw) -> dict:
    cell = _one(draw, "lstm", "gru", "rnn", "slstm")
    out = {"cell": cell}
    if cell in ("lstm", "gru") and _sometimes(draw, 4):
        out["normed"] = _normed(draw, cell)
        return out
    if cell == "gru":
        out["reset_after"] = not draw(st.booleans())
    if cell in ("lstm", "gru") and _sometimes(draw, 4):
        out["activation"] = _one(draw, "tanh", "softsign", "relu")
        out["gate_activation"] = _one(draw, "sigmoid", "hard_sigmoid")
    if cell == "rnn":
        out["activation"] = _one(draw, "tanh", "relu", "clipped_relu", "softsign")
        out["skip"] = _one(draw, 0.0, 0.3)
    if cell != "slstm" and _sometimes(draw, 6):
        out["clip"] = 0.4
    return out


def _normed(draw, cell: str) -> str:
    """Layer norm, as `Case` says it."""
    of = _one(draw, "parts", "sum") if cell == "lstm" else "parts"
    c = _one(draw, "output", "state", "none") if cell == "lstm" else "output"
    return f"{of} {_one(draw, 'gates', 'gate')} {c} {_one(draw, '1e-3', '0.1')}"


def _controls(draw, case: dict) -> dict:
    out = {}
    if _sometimes(draw, 2):
        kinds = ["list", "number"] if not case["batch"] else ["list"]
        out["lengths"] = _one(draw, *LENGTHS, *kinds)
    if _sometimes(draw, 3):
        out["resets"] = _one(draw, *RESETS, "list")
        out["reset_to"] = _sometimes(draw, 2)
    out["mask"] = _sometimes(draw, 4)
    if case["cell"] != "slstm" and _sometimes(draw, 3):
        out["zoneout"] = _one(draw, *ZONEOUTS)
        if out["zoneout"] == "tuple" and case["cell"] != "lstm":
            out["zoneout"] = "shares"
    lists = {out.get("lengths"), out.get("resets")} & {"list", "number"}
    controlled = "lengths" in out or "resets" in out
    out["known"] = bool(lists) or (controlled and _sometimes(draw, 4))
    if case["state"] and out.get("lengths") and _sometimes(draw, 6):
        out["padding"] = "state"
    elif out.get("lengths") and _sometimes(draw, 2):
        out["padding"] = "x"
    elif (
        out.get("resets", "list") != "list"
        and not out.get("lengths")
        and case["state"]
        and not case["bidirectional"]
        and case["time"]
        and _sometimes(draw, 4)
    ):
        out["padding"] = "reset"
    return out


def _maps(draw, case: Case) -> tuple[Map, ...]:
    names = [*case.floats()]
    names += [n for n in case.constants() if not case.known]
    weights = "w_", "b_", "own", "scale", "shift"
    data = [n for n in names if not n.startswith(weights)]
    names = data if case.prepared else names
    count = _one(draw, 0, 0, 1, 1, 2, 2, 3)
    levels = []
    for _ in range(count):
        size = _one(draw, 2, 2, 3, 1) if not _sometimes(draw, 12) else 0
        of = names if draw(st.booleans()) else data
        over = draw(st.sets(st.sampled_from(of), min_size=1))
        over = tuple(n for n in names if n in over)
        levels.append(Map(size, over, _sometimes(draw, 4)))
    return tuple(levels)


@st.composite
def calls(draw) -> Case:
    """A call of one layer, on one device."""
    case = _cell(draw) | _sizes(draw)
    case["bidirectional"] = _sometimes(draw, 3)
    if case["bidirectional"]:
        case["merge"] = _one(draw, "concat", "concat", "sum")
    case["heads"] = _one(draw, 0, 0, 0, 1, 2, 3)
    if case["heads"]:
        case["hidden"] = max(min(case["hidden"], 96 // case["heads"]), 1)
    case["reverse"] = _sometimes(draw, 3)
    case["time_major"] = _sometimes(draw, 3)
    case["biases"] = _one(draw, "both", "both", "b_ih", "b_hh", "none")
    case["state"] = draw(st.booleans())
    case["dtype"] = _one(draw, *(("float32",) * 6), *DTYPES)
    case["x64"] = case["dtype"] == "float64" or _sometimes(draw, 8)
    case["lean"] = _sometimes(draw, 3)
    case["implementation"] = _one(draw, None, None, "native", "scan")
    if case["dtype"] == "float64" and case["implementation"] == "native":
        case["implementation"] = None
    case |= _controls(draw, case)
    may_be_prepared = case["time"] > 0
    case["prepared"] = may_be_prepared and _sometimes(draw, 12)
    case["bare"] = not case["prepared"] and _sometimes(draw, 12)
    case["derivative"] = _one(draw, "forward", "vjp", "vjp", "grad", "second", "jvp")
    if case["derivative"] == "jvp":
        case["implementation"] = "scan"
    if case["derivative"] == "second" and case["time"] > 40:
        case["derivative"] = "vjp"
    case["inside"] = _one(
        draw,
        *("",) * 6,
        *("checkpoint", "checkpoint_saved", "checkpoint_dots", "jit", "scan"),
    )
    if case["inside"] == "scan":
        case |= {"state": True}
    case["outputs"] = _one(draw, "both", "both", "y", "state")
    if case["inside"] == "scan":
        case["outputs"] = "both"
    case["way"] = _one(draw, *("quick",) * 12, "jit", "eager")
    if case["way"] == "eager" and case["time"] < 4 and _sometimes(draw, 6):
        case["way"] = "disable_jit"
    if case["way"] == "eager" and case["dtype"] == "float32" and not case["x64"]:
        case["wide"] = case["derivative"] == "forward" and case["inside"] == ""
    case["promotion"] = _one(draw, *("",) * 10, "strict", "rank")
    case["seed"] = draw(st.integers(0, 9999))
    case["scale"] = _one(draw, *(1.0,) * 8, 30.0, 300.0)
    if case["dtype"] == "float16":
        case["scale"] = 1.0
    made = Case(**case)
    # Gradients of a scan with layer norm under three maps end the process, in code that
    # is XLA's alone (jaxlib 0.10.2 on a CPU); not so under two, or without layer norm.
    levels = _maps(draw, made)[: 2 if made.normed else 3]
    fields = {**case, "maps": levels, "outer": draw(st.integers(0, len(levels)))}
    if levels and case.get("padding") in ("state", "reset"):
        fields["padding"] = ""
    if "lengths" in case and levels and case.get("padding") == "x":
        fields["known"] = case["known"]
    return _bounded(Case(**fields))


def normed_calls() -> st.SearchStrategy[Case]:
    """Those of cells with layer norm."""
    return calls().filter(lambda case: bool(case.normed))


@st.composite
def stacks(draw) -> Case:
    """Layers one on the other, at times so many that they run in a loop."""
    case = _small(draw)
    layers = _one(draw, 2, 2, 3, 9)
    is_equal = layers == 9 or draw(st.booleans())
    if case["bidirectional"]:
        case["merge"] = _one(draw, "concat", "sum")
    case |= {
        "layers": layers,
        "norm": draw(st.booleans()),
        "skip_connections": draw(st.booleans()),
    }
    if layers == 9:
        case |= {"hidden": min(case["hidden"], 5), "time": min(case["time"], 4)}
        if case["derivative"] == "second" and not _sometimes(draw, 4):
            case["derivative"] = "vjp"
    if is_equal:
        case["input_size"] = Case(**case).features
    case |= _bent(draw, case)
    case["stacked"] = layers > 2 and _sometimes(draw, 3)
    may_be_prepared = not case["stacked"]
    case["prepared"] = may_be_prepared and _sometimes(draw, 8)
    made = Case(**case)
    levels = _maps(draw, made)[:1]
    if case["padding"] == "state":
        levels = ()
    outer = draw(st.integers(0, len(levels)))
    return dataclasses.replace(made, maps=levels, outer=outer)


@st.composite
def layers(draw) -> Case:
    """A layer of a host library, with the numbers of its parameters given."""
    case = _small(draw)
    case.pop("normed", None)
    case["host"] = _one(draw, "linen", "nnx", "equinox")
    case["biases"] = "b_ih"
    if case["host"] == "equinox":
        case["biases"] = _one(draw, "b_ih", "none")
        case["heads"] = case["heads"] if case["heads"] > 1 else 0
    if case["bidirectional"]:
        case["reverse"] = False
        case["merge"] = _one(draw, "concat", "sum")
    else:
        case["reverse"] = _sometimes(draw, 3)
    case |= _bent(draw, case)
    return Case(**case)


@st.composite
def meshes(draw) -> Case:
    """A call over 4 or 8 devices that share the batch, the heads or both."""
    case = _small(draw)
    case["mesh"] = _one(draw, "auto", "explicit", "manual")
    case["devices"] = _one(draw, 8, 4)
    case["shard"] = _one(draw, ("batch",), ("heads",), ("batch", "heads"))
    two = len(case["shard"]) == 2
    if "heads" in case["shard"]:
        own = 2 if two else case["devices"]
        case |= {"heads": own * _one(draw, 1, 2), "bidirectional": False}
        case["hidden"] = min(case["hidden"], 6)
    if "batch" in case["shard"]:
        own = case["devices"] // 2 if two else case["devices"]
        case["batch"] = (own * _one(draw, 1, 2), *case["batch"][:1])
    elif not case["batch"]:
        case["batch"] = (2,)
    case["reverse"] = _sometimes(draw, 3)
    case |= _bent(draw, case)
    case |= {"known": False, "promotion": "", "way": "quick"}
    if case.get("lengths") == "list":
        case["lengths"] = "int32"
    case["mask"] = _sometimes(draw, 4)
    if case["cell"] != "slstm":
        case["zoneout"] = _one(draw, "", "", "number", "draws")
    if case["derivative"] not in ("forward", "grad"):
        case["derivative"] = "grad"
    if case["padding"] == "state" or _sometimes(draw, 2):
        return Case(**case)
    levels = _maps(draw, Case(**case))[:1]
    outer = draw(st.integers(0, len(levels)))
    return Case(**case, maps=levels, outer=outer)


@st.composite
def exports(draw) -> Case:
    """A program through bytes and back, that does not know its batch or time."""
    case = _small(draw)
    case["symbolic"] = _one(draw, "bt", "t", "b", "-")
    case["batch"] = (draw(st.integers(1, 5)),)
    case["cut"] = _sometimes(draw, 3)
    case["time"] = draw(st.integers(0 if case["cut"] else 1, 5))
    case["reverse"] = _sometimes(draw, 3)
    case |= _bent(draw, case)
    case |= {"known": False, "promotion": "", "way": "quick"}
    if case.get("lengths") == "list":
        case["lengths"] = "int32"
    case["mask"] = _sometimes(draw, 4)
    if case["cell"] != "slstm":
        case["zoneout"] = _one(draw, "", "", "number", "draws")
    if case["derivative"] == "second":
        case["derivative"] = "vjp"
    return Case(**case)


def _small(draw) -> dict:
    """Cell, sizes and layout of a case that has much beside them."""
    case = _cell(draw) | {
        "time": draw(st.integers(1, 6)),
        "batch": tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=2))),
        "hidden": draw(st.integers(1, 10)),
        "input_size": draw(st.integers(1, 6)),
    }
    case["bidirectional"] = _sometimes(draw, 3)
    case["heads"] = _one(draw, 0, 0, 0, 2, 1, 3)
    case["time_major"] = _sometimes(draw, 3)
    case["biases"] = _one(draw, "both", "b_ih", "b_hh", "none")
    case["dtype"] = _one(draw, *("float32",) * 8, "bfloat16", "float16")
    case["lean"] = _sometimes(draw, 3)
    case["implementation"] = _one(draw, None, None, "native", "scan")
    case["derivative"] = _one(draw, "forward", "vjp", "vjp", "grad", "second")
    case["seed"] = draw(st.integers(0, 9999))
    return case


def _bent(draw, case: dict) -> dict:
    """State and controls that every kind of layer has."""
    case["state"] = draw(st.booleans())
    out = _controls(draw, case)
    if out.get("lengths") == "number":
        out["lengths"] = "int32"
    if out.get("resets") == "list":
        out["resets"] = "bool"
    out["known"] = out.get("lengths") == "list"
    out["mask"] = False
    if out.get("zoneout"):
        out["zoneout"] = "number"
    out["padding"] = out.get("padding", "").replace("reset", "")
    out["promotion"] = _one(draw, *("",) * 10, "strict", "rank")
    return out


def _bounded(case: Case) -> Case:
    """Smaller where it would take long."""
    while case.work > WORK and max(case.batch, default=0) > 1:
        batch = tuple((n + 1) // 2 for n in case.batch)
        case = dataclasses.replace(case, batch=batch)
    while case.work > WORK and case.maps:
        case = dataclasses.replace(
            case, maps=case.maps[1:], outer=max(case.outer - 1, 0)
        )
    return case
