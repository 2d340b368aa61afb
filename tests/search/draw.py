"""Cases, as hypothesis draws them."""

import dataclasses

from hypothesis import strategies as st

from .case import Case, Map

LENGTHS = "int32", "int8", "uint8", "int16", "uint16", "uint32", "int64", "uint64"
RESETS = "bool", "int32", "uint8", "int8", "float32", "bfloat16", "float16", "int64"
DTYPES = "float32", "bfloat16", "float16", "float64"
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
    if cell == "gru":
        out["reset_after"] = not draw(st.booleans())
    if cell == "rnn":
        out["activation"] = _one(draw, "tanh", "relu", "clipped_relu")
        out["skip"] = _one(draw, 0.0, 0.3)
    return out


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
        out["zoneout"] = _one(draw, "number", "draws", "shares", "tuple", "scalar")
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
    if case.prepared:
        names = [n for n in names if not n.startswith(("w_", "b_"))]
    count = _one(draw, 0, 0, 1, 1, 2, 2, 3)
    levels = []
    for _ in range(count):
        size = _one(draw, 2, 2, 3, 1) if not _sometimes(draw, 12) else 0
        over = draw(st.sets(st.sampled_from(names), min_size=1))
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
    case["prepared"] = case["time"] > 0 and _sometimes(draw, 12)
    case["derivative"] = _one(draw, "forward", "vjp", "vjp", "grad", "second", "jvp")
    if case["derivative"] == "jvp":
        case |= {"implementation": "scan", "lean": False}
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
    case["promotion"] = _one(draw, *("",) * 10, "strict", "rank")
    case["seed"] = draw(st.integers(0, 9999))
    made = Case(**case)
    levels = _maps(draw, made)
    fields = {**case, "maps": levels, "outer": draw(st.integers(0, len(levels)))}
    if levels and case.get("padding") in ("state", "reset"):
        fields["padding"] = ""
    if "lengths" in case and levels and case.get("padding") == "x":
        fields["known"] = case["known"]
    return _bounded(Case(**fields))


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
