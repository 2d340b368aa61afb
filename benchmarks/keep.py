"""What of the results does the repository keep?

`python -m benchmarks.keep` makes the files in benchmarks/results compact: a row of
figures to a line, six digits, the best of repeated limits, and without what no page or
table shows: the plan of each point, calls in a round, which peers were not installed.
The newest of each benchmark and machine is kept, `NAME.json` or `NAME-MACHINE.json`.
"""

import argparse
import json
from collections.abc import Sequence
from typing import Any

from benchmarks import _command_line as command_line
from benchmarks import _harness as harness

DIGITS = 6
#: Of points; figures and what they are of stay.
LEFT_OUT = frozenset({"plan", "calls_per_round", "absent"})


def kept(results: dict) -> dict:
    """What is kept of a benchmark's results, or of a GPU's."""
    less = {
        name: [_row(row) for row in value] if _is_rows(value) else value
        for name, value in results.items()
    }
    if (limits := less.get("limits")) is not None:
        best = [{**row, "rounds": [max(row["rounds"])]} for row in limits["rows"]]
        less["limits"] = {**limits, "rows": best}
    return _rounded(less)


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(row, dict) for row in value)


def _row(row: dict) -> dict:
    return {name: value for name, value in row.items() if name not in LEFT_OUT}


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_rounded(inner) for inner in value]
    if isinstance(value, float):  # large ones, which pages show whole, to a hundredth
        return round(value, 2) if abs(value) >= 1e4 else float(f"{value:.{DIGITS}g}")
    return value


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.keep", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "folder",
        nargs="?",
        type=command_line.folder,
        default=command_line.RESULTS,
        metavar="FOLDER",
    )
    for path in sorted(parser.parse_args(arguments).folder.rglob("*.json")):
        before = path.stat().st_size
        path.write_text(harness.rows_text(kept(json.loads(path.read_text()))))
        print(f"{path.name}: {before} -> {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
