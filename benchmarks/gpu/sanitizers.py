"""Does compute-sanitizer find anything in our kernels?

Run as `python -m benchmarks.gpu.sanitizers --program PATH`: `check_device`
(tests/native/check_device.cc) under each tool, every kernel in small cases, with and
without controls. Without compute-sanitizer and with `--smoke`, the program by itself.
Which reports are expected, and why: cuda/README.md.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.gpu import _rows

CASES = "*-T3-B3-* *-all-*"
WITHOUT_CLUSTERS = "*-grid?-T3-* *-grid?-all-* *-block?-T3-* *-block?-all-*"
CLUSTERS = "*-cluster?-T3-* *-cluster?-all-*"
#: Tools and cases. racecheck does not follow an mbarrier's order: of clusters it may
#: report hazards that are none.
RUNS = (
    ("memcheck", CASES, True),
    ("racecheck", WITHOUT_CLUSTERS, True),
    ("synccheck", CASES, True),
    ("initcheck", CASES, True),
    ("racecheck", CLUSTERS, False),
)


def ours(log: str) -> list[str]:
    """The reports of a tool's log that name a kernel of ours."""
    reports = re.split(
        r"^=+ (?=Error|Invalid|Uninitialized|Race|Barrier|Warning)",
        log,
        flags=re.MULTILINE,
    )
    return [report for report in reports[1:] if "prnn" in report]


def run_tool(tool: str, cases: str, program: Path, seconds: float) -> dict:
    """The program under a tool, or by itself where that is ""."""
    # A step takes milliseconds under a tool: no watchdog.
    options = f"cases={cases}", "runs=1", f"seconds={seconds:.0f}", "patience=0"
    command = [program, *options]
    if tool:
        sanitizer = shutil.which("compute-sanitizer") or "compute-sanitizer"
        command = [sanitizer, "--tool", tool, "--print-limit", "20", *command]
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds + 60,
            check=False,
        )
        log, status = done.stdout, done.returncode
    except subprocess.TimeoutExpired as late:
        output = late.stdout or b""
        log = output if isinstance(output, str) else output.decode(errors="replace")
        status = None
    check = f"{tool or 'no tool'}, {cases}"
    return {"check": check, **verdict(log, status, has_tool=bool(tool))}


def verdict(log: str, status: int | None, *, has_tool: bool) -> dict:
    """What a log says. It is good only with the tool's summary and the program's."""
    summary = re.findall(r"ERROR SUMMARY: (\d+)|RACECHECK SUMMARY: (\d+)", log)
    errors = sum(int(n or m) for n, m in summary)
    found = ours(log)
    rows = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    ended = next((row for row in rows if row.get("check") == "all"), {})
    for report in found[:3]:
        print(report[:2000], flush=True)
    good = status == 0 and ended.get("ok") is True and errors == 0 and not found
    if not good and not found:
        print(log[-3000:], flush=True)
    return {
        "ok": good and bool(summary) == has_tool,
        "cases": ended.get("cases", 0),
        "left_out": sum(row.get("left_out", 0) for row in rows),
        "errors": max(errors, len(found)),
        "status": status,
    }


def main() -> int:
    """The command line."""
    parser = _rows.parser(__doc__, 120)
    parser.add_argument("--program", type=Path, required=True)
    options = parser.parse_args()
    rows, budget = _rows.Rows("sanitizers", options.out), _rows.Budget(options.budget)
    runs = RUNS
    if shutil.which("compute-sanitizer") is None:
        if not options.smoke:
            rows.write(ok=False, error="compute-sanitizer is not on PATH")
            return rows.status
        runs = (("", "*-bf16-*-T3-B3-*", True),)
    for n, (tool, cases, required) in enumerate(runs):
        # What no tool has begun by then is left out, and said.
        seconds = max(10.0, 0.8 * budget.left / (len(runs) - n))
        found = run_tool(tool, cases, options.program, seconds)
        rows.write(**found, required=required)
    return rows.status


if __name__ == "__main__":
    sys.exit(main())
