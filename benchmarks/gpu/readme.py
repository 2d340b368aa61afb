"""The README's table of a GPU, from what a campaign has measured there.

Run as `python -m benchmarks.gpu.readme RESULTS [--file README.md]`: the folder in which
`benchmarks/gpu_campaign.sh --stage 4` has left them, or a JSON file of
benchmarks/results/gpu. Needs nothing but Python.
"""

import argparse
import collections
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu.summary import Row, read, table

BEGIN, END = "<!-- gpu: begin -->", "<!-- gpu: end -->"
RIVALS = {
    "scan": "`lax.scan`",
    "cudnn": "cuDNN by JAX",
    "torch": "torch",
    "torch graph": "torch, graphed",
}


def text(rows: list[Row]) -> str:
    """How many times as fast as each rival: geometric mean, least, number of points.

    Of rivals that were timed.

    Raises:
      ValueError: nothing was measured on a GPU.
    """
    found = [row for row in rows if row.get("part") == "peers"]
    devices = {row["device"] for row in found if "device" in row}
    times: dict[tuple, dict[str, float]] = collections.defaultdict(dict)
    for row in found:
        if "step_us" in row and row.get("layers", 1) == 1:
            point = [row[k] for k in ("cell", "dtype", "mode", "hidden", "batch")]
            times[tuple(point)][row["who"]] = row["step_us"]
    ratios = collections.defaultdict(list)
    for (cell, dtype, mode, *_), us in times.items():
        for who in RIVALS.keys() & us.keys() if "native" in us else ():
            ratios[(cell, dtype, mode), who].append(us[who] / us["native"])
    if not ratios or not any("NVIDIA" in device for device in devices):
        raise ValueError(
            "readme: expected rows of the part peers that were timed on an NVIDIA GPU, "
            f"got {len(found)} rows of {sorted(devices) or 'no device'}; run "
            "benchmarks/gpu_campaign.sh --stage 4 there."
        )
    there = [who for who in RIVALS if any(who == other for _, other in ratios)]
    lines = [
        [*kind, *(_ratio(ratios.get((kind, who))) for who in there)]
        for kind in sorted({kind for kind, _ in ratios})
    ]
    versions = {
        f"{row['library']} {row['version']}" for row in found if "version" in row
    }
    return "\n".join(
        [
            *table(["cell", "dtype", "mode", *map(RIVALS.get, there)], lines),
            "",
            "Times as fast as, geometric mean (least, points): "
            + "; ".join([*sorted(devices), *sorted(versions)])
            + ".",
        ]
    )


def _ratio(values: list[float] | None) -> str:
    if not values:
        return ""
    mean = statistics.geometric_mean(values)
    return f"{mean:.2f}× ({min(values):.2f}×, {len(values)})"


def put(page: str, new: str) -> str:
    """The page with that between the two marks.

    Raises:
      ValueError: they are not there.
    """
    if not 0 <= page.find(BEGIN) < page.find(END):
        raise ValueError(f"readme: expected {BEGIN} and, after it, {END} in the file.")
    head, rest = page.split(BEGIN, 1)
    return f"{head}{BEGIN}\n\n{new}\n\n{END}{rest.split(END, 1)[1]}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; its exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("results", type=Path, help="of a campaign: folder or JSON")
    default = Path(__file__).parents[2] / "README.md"
    parser.add_argument("--file", type=Path, default=default, help="with the two marks")
    options = parser.parse_args(arguments)
    try:
        new = text(read(options.results))
        options.file.write_text(put(options.file.read_text(), new))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
