"""What did the GPU campaign find? Markdown, from the rows that its parts have written.

Run as `python -m benchmarks.gpu.summary FOLDER`. Needs nothing but Python.
"""

import collections
import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

Row = dict


def read(results: Path) -> list[Row]:
    """The rows of a folder, but those that were cut off, or of a JSON file."""
    if results.is_file():
        parts = json.loads(results.read_text()).values()
        return [row for part in parts if isinstance(part, list) for row in part]
    rows = []
    for path in sorted(results.glob("*.jsonl")):
        for line in path.read_text(errors="replace").splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict) and "part" in row:
                rows.append(row)
    return rows


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """In Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(map(str, line)) + " |" for line in lines]


def parts(rows: list[Row]) -> list[str]:
    """How each part ended."""
    ended = [row for row in rows if row["part"] == "campaign" and "name" in row]
    return [
        "## Parts",
        "",
        *table(
            ["part", "status", "seconds"],
            [[r["name"], r["status"], r["seconds"]] for r in ended],
        ),
    ]


def failures(rows: list[Row]) -> list[str]:
    """Every row that says that something is wrong."""
    wrong = [
        row
        for row in rows
        if row["part"] != "campaign"
        and (
            (row.get("ok") is False and row.get("required", True))
            or (row["part"] == "micro" and row.get("wrong", 0) > 0)
            or ("error" in row and row["part"] != "peers")
        )
    ]
    ended = [row for row in rows if row["part"] == "campaign" and "name" in row]
    found = [
        f"- {row['name']}: {row['status']}; see log.txt"
        for row in ended
        if row["status"] not in ("ok", "no GPU")
    ]
    found += [f"- `{json.dumps(row)[:400]}`" for row in wrong]
    lines = ["## What is wrong", "", *(found or ["Nothing was found."])]
    notes = [
        row["check"]
        for row in rows
        if row.get("ok") is False and row.get("required") is False
    ]
    if notes:
        lines += ["", f"Not as in the emulator, but not relied on: {', '.join(notes)}."]
    return lines


def constants(rows: list[Row]) -> list[str]:
    """What was measured beside what the planner's model has."""
    measured = [row for row in rows if row["part"] == "micro" and "value" in row]
    if not measured:
        return []
    known = {"part", "what", "constant", "value", "unit", "predicted", "verdict"}

    def line(row: Row) -> list[object]:
        details = {k: v for k, v in row.items() if k not in known and k != "wrong"}
        return [
            row["what"],
            ", ".join(f"{k} {_number(v)}" for k, v in details.items()),
            f"`{row['constant']}`" if row["constant"] else "",
            f"{_number(row['value'])} {row['unit']}",
            _number(row["predicted"]),
            row["verdict"],
        ]

    header = ["measured", "", "constant", "value", "predicted", "verdict"]
    lines = ["## Constants", "", *table(header, map(line, measured)), ""]
    by_name = collections.defaultdict(list)
    for row in measured:
        if row["constant"] and row["constant"] != "clusters":
            by_name[row["constant"]].append(row["value"])
    # The worst of the latencies, the best of the rates: what a larger case would see.
    rates = "bytes", "ghz", "per_clock", "per_s", "conversions"
    values = {
        name: (max if any(r in name for r in rates) else statistics.median)(found)
        for name, found in by_name.items()
    }
    lines += ["For the planner (cuda/devices.cc):", "", "```cpp"]
    lines += [f".{name} = {_number(value)}," for name, value in values.items()]
    return [*lines, "```"]


def plans(rows: list[Row]) -> list[str]:
    """Measured against modelled µs per step; and what the planner should have taken."""
    found = [row for row in rows if row["part"] == "plans" and "step_us" in row]
    if not found:
        return []
    by_kind, by_point = collections.defaultdict(list), collections.defaultdict(list)
    for row in found:
        if row["step_us"] > 0:
            by_kind[row["pass"], row["products"], row["exchange"]].append(
                row["step_us"] / row["modelled_us"]
            )
            point = [row[k] for k in ("cell", "pass", "products", "hidden", "batch")]
            by_point[tuple(point)].append(row)
    lines = [
        [*kind, len(v), *(f"{f(v):.2f}" for f in (min, statistics.median, max))]
        for kind, v in sorted(by_kind.items())
    ]
    header = "pass", "products", "exchange", "plans", "least", "median", "most"
    missed = []
    for point, candidates in by_point.items():
        best = min(candidates, key=lambda row: row["step_us"])
        chosen = [row for row in candidates if row["is_chosen"]]
        if chosen and chosen[0]["step_us"] > 1.1 * best["step_us"]:
            missed.append((chosen[0]["step_us"] / best["step_us"], point, best))
    missed.sort(key=lambda entry: -entry[0])
    text = [
        f"- {', '.join(map(str, point))}: {times:.2f}× the time of {best['exchange']} "
        f"{best['rows']} x {best['columns']}, {best['step_us']:.2f} us"
        for times, point, best in missed[:20]
    ]
    # What the model leaves out of a step, or has too much; of one round, in cycles.
    clock = next((r["value"] for r in rows if r.get("constant") == "clock_ghz"), 1.9)
    over = collections.defaultdict(list)
    for row in found:
        us = (row["step_us"] - row["modelled_us"]) / row["rounds"]
        over[row["exchange"]].append(1e3 * clock * us)
    cycles = ", ".join(
        f"{exchange} {statistics.median(v):+.0f} (of {len(v)})"
        for exchange, v in sorted(over.items())
    )
    right = len(by_point) - len(missed)
    return [
        "## Plans: measured / modelled time of a step",
        "",
        *table(header, lines),
        "",
        f"Measured less modelled, medians in cycles at {clock:.2f} GHz: {cycles}. "
        "What all share is the model's pointwise or issue, the rest the exchange's.",
        "",
        f"The fastest plan, or one within a tenth, is chosen for {right} of "
        f"{len(by_point)} points.",
        *text,
    ]


def segments(rows: list[Row]) -> list[str]:
    """Where a step's time goes."""
    found = [row for row in rows if row["part"] == "segments" and "pass" in row]
    if not found:
        return []
    parts = "arrive", "product", "fetch", "reduce", "cell"
    names = "pass", "hidden", "batch", "exchange", "rows", "columns", "blocks"
    lines = [
        [
            *(row[name] for name in names),
            *(round(row[part]) for part in (*parts, "before")),
            round(sum(row[part] for part in parts)),
            row["modelled"],
        ]
        for row in found
    ]
    header = *names, *parts, "before", "step", "modelled"
    return [
        "## Cycles of a step, LSTM in bfloat16",
        "",
        *table(header, lines),
        "",
        "Of each block's first thread, medians over the blocks; looks at the clock "
        "included. In `product` is the wait for what others publish; `before` is once "
        "a call: loading weights, and the first barrier.",
    ]


def peers(rows: list[Row], limit: int = 60) -> list[str]:
    """µs per step of all contenders, a line for each point."""
    names = "native", "at once", "scan", "cudnn", "torch", "torch graph"
    by_point = collections.defaultdict(dict)
    for row in rows:
        if row["part"] == "peers" and "who" in row:
            point = [row[k] for k in ("cell", "hidden", "batch", "dtype", "mode")]
            point.append(row.get("layers", 1))
            value = _number(row["step_us"]) if "step_us" in row else "error"
            by_point[tuple(point)][row["who"]] = (value, row.get("step_us"))
    if not by_point:
        return []
    lines, ratios = [], collections.defaultdict(list)
    for point, found in by_point.items():
        ours = found.get("native", ("", None))[1]
        rivals = [v for who, (_, v) in found.items() if who != "native" and v]
        best = f"{min(rivals) / ours:.2f}×" if ours and rivals else ""
        *of_layer, layers = point
        rate = f"{layers * _tflops(*of_layer) / ours:.1f}" if ours else ""
        lines.append([*point, *(found.get(n, ("", 0))[0] for n in names), best, rate])
        for who, (_, value) in found.items():
            if ours and value and who != "native":
                ratios[who].append(value / ours)
    header = [
        "cell",
        "H",
        "B",
        "dtype",
        "mode",
        "layers",
        *names,
        "best other / ours",
        "TFLOP/s",
    ]
    means = [
        f"{who}: {statistics.geometric_mean(v):.2f}× (least {min(v):.2f}×, {len(v)})"
        for who, v in ratios.items()
    ]
    more = len(lines) - limit
    compared = "; ".join(means) or "nothing to compare"
    return [
        "## µs per step",
        "",
        *table(header, lines[:limit]),
        *([f"... and {more} more points"] if more > 0 else []),
        "",
        f"Times as fast as, geometric mean: {compared}. TFLOP/s are ours, of the "
        "recurrent products alone; the peak of an H100 or H200 is 990 in 16 bits.",
    ]


def _tflops(cell: str, hidden: int, batch: int, dtype: str, mode: str) -> float:
    """Millions of operations of a step's recurrent products: by µs, TFLOP/s."""
    del dtype
    gates = {"lstm": 4, "gru": 3, "rnn": 1}[cell]
    passes = 3 if mode == "train" else 1  # the weights' gradients, too
    return 2e-6 * passes * batch * hidden * gates * hidden


def others(rows: list[Row]) -> list[str]:
    """Rows of the parts that have few."""
    lines = []
    for part in ("engine", "command_buffers", "sanitizers", "soak"):
        found = [row for row in rows if row["part"] == part]
        if found:
            lines += [f"## {part}", ""]
            lines += [
                "- " + ", ".join(f"{k} {v}" for k, v in row.items() if k != "part")
                for row in found
            ]
            lines.append("")
    checks = [row for row in rows if row["part"] == "conformance" and "check" in row]
    if checks:
        good = sum(row["ok"] for row in checks)
        lines += [f"Conformance: {good} of {len(checks)} checks hold.", ""]
    return lines


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    (folder,) = sys.argv[1:] if arguments is None else arguments
    rows = read(Path(folder))
    device = next((r["name"] for r in rows if r.get("what") == "device"), "no GPU")
    sections = [parts(rows), failures(rows), others(rows), constants(rows)]
    sections += [segments(rows), plans(rows), peers(rows)]
    print(f"# GPU campaign: {device}\n")
    for section in sections:
        if section:
            print("\n".join(section) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
