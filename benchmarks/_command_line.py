"""What command lines of benchmarks share: options, and where results come from or go.

Nothing here prints.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import jax

from benchmarks import _harness as harness

RESULTS = harness.ROOT / "benchmarks" / "results"


def parser(
    name: str, question: str, budget_s: float, *, has_table: bool = True
) -> argparse.ArgumentParser:
    """For the benchmark's command line, with the options that `outcome` looks at.

    Without `--table`, for `write` alone, unless it `has_table`.
    """
    made = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}", description=question
    )
    made.add_argument(
        "--budget-s",
        type=positive(float),
        default=budget_s,
        help="seconds of timing for each point (default: %(default)s)",
    )
    made.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help=f"where to write JSON (default: results/{name}.json for all points, "
        "nowhere for a subset)",
    )
    if has_table:
        made.add_argument(
            "--table", type=Path, metavar="FILE", help="print JSON as Markdown instead"
        )
    return made


def outcome(
    parser: argparse.ArgumentParser,
    options: argparse.Namespace,
    measure: Callable[[argparse.Namespace], dict],
) -> dict:
    """Results: those of the file that `--table` names, or new ones, then written.

    Args:
      parser: made by `parser`.
      options: as it has parsed them.
      measure: what to record besides `harness.record`.
    """
    name = parser.prog.rpartition(".")[2]
    if options.table:
        try:
            return harness.read_json(options.table, name)
        except (OSError, ValueError) as error:
            parser.error(str(error))
    before = harness.load()
    measured = measure(options)
    results = {
        **harness.record(name, before),
        "platform": jax.default_backend(),
        **measured,
    }
    write(parser, options, results)
    return results


def write(
    parser: argparse.ArgumentParser, options: argparse.Namespace, results: dict
) -> None:
    """Writes results where `--out` says, else those of all points to `RESULTS`."""
    out = options.out
    if out is None and _asks_for_all(parser, options):
        out = RESULTS / f"{results['benchmark']}.json"
    if out is not None:
        harness.write_json(out, results)


def positive(kind: Callable) -> Callable:
    """An argument's type: a number of that kind above 0."""

    def parse(text: str):
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"must be above 0, got {text}")
        return value

    return parse


def folder(text: str) -> Path:
    """An argument's type: a folder that is there."""
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"must be a folder, got {text}")
    return Path(text)


def _asks_for_all(parser: argparse.ArgumentParser, options: argparse.Namespace) -> bool:
    """Whether no option says otherwise; the budget does not."""
    default = vars(parser.parse_args([]))
    return {**vars(options), "budget_s": default["budget_s"]} == default
