"""What have the benchmarks measured?

`python -m benchmarks.report` makes docs/benchmarks.md, its plots and docs/models.md of
what is in benchmarks/results. Nothing there is written by hand.
"""

import argparse
import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

from benchmarks import _command_line as command_line
from benchmarks import _harness as harness
from benchmarks import models

#: In the order in which they are shown.
BENCHMARKS = (
    "against_peers",
    "against_scan",
    "models",
    "language_model",
    "prnn_figure",
    "roofline",
    "half_precision",
    "streaming",
    "dispatch",
    "memory",
    "padding",
    "cliffs",
    "scaling",
    "compile_time",
    "cells",
    "projection",
    "products",
)

_HEAD = """\
# Benchmarks

Made by `make bench-report` of the files in [benchmarks/results](../benchmarks/results).
How to read it is said in [benchmarks/README.md](../benchmarks/README.md)."""


def page(results_folder: Path, plots: Callable[[str, dict], Sequence[str]]) -> str:
    """The report in Markdown.

    Args:
      results_folder: has a file for each benchmark that was run, and others for the
        same on other machines, `NAME-MACHINE.json`: their tables follow, without plots.
      plots: makes those of a benchmark; their files, as the page may link to them.
    """
    sections, missing = [_HEAD], []
    for name in BENCHMARKS:
        path = results_folder / f"{name}.json"
        if not path.exists():
            missing.append(f"- `python -m benchmarks.{name}`")
            continue
        results = harness.read_json(path, name)
        module = importlib.import_module(f"benchmarks.{name}")
        question = (module.__doc__ or name).splitlines()[0]
        sections += [f"## {question}", table(module, results)]
        sections += [f"![{Path(file).stem}]({file})" for file in plots(name, results)]
        sections.append(_source(results))
        for other in sorted(results_folder.glob(f"{name}-*.json")):
            results = harness.read_json(other, name)
            sections += [table(module, results), _source(results)]
    if missing:
        sections += ["## Not yet measured", "\n".join(missing)]
    return "\n\n".join(sections) + "\n"


def _source(results: dict) -> str:
    """Of what the figures are."""
    name = results["benchmark"]
    return f"`python -m benchmarks.{name}`: {harness.provenance(results)}."


def table(module: ModuleType, results: dict) -> str:
    """What the benchmark's module shows of its results."""
    name = results["benchmark"]
    return _TABLES.get(name, lambda module, results: module.table(results))(
        module, results
    )


#: Where it is not `module.table(results)`.
_TABLES: dict[str, Callable[[ModuleType, dict], str]] = {
    "against_scan": lambda module, results: module.compact_table(results),
    "models": lambda module, results: module.summary(results),
    "memory": lambda module, results: module.table(results["points"]),
    "padding": lambda module, results: module.table(results["points"]),
    "cliffs": lambda module, results: module.table(results["results"]),
    "scaling": lambda module, results: module.tables(results),
    "compile_time": lambda module, results: harness.markdown(
        module._HEADER, map(module._row, results["points"])
    ),
    "projection": lambda _, results: harness.markdown(
        ("batch, time, input, hidden, dtype", "in the call, µs", "by XLA, µs", "ratio"),
        (
            (
                ", ".join(map(str, (*point["shape"], point.get("dtype", "float32")))),
                *(harness.number(point["us"][n]["median"]) for n in ("native", "xla")),
                f"{point['ratio']['median']:.2f}×",
            )
            for point in results["points"]
        ),
    ),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.report", description=(__doc__ or "").splitlines()[0]
    )
    for option, kind, default in (
        ("--results", command_line.folder, command_line.RESULTS),
        ("--out", Path, harness.ROOT / "docs"),
    ):
        parser.add_argument(option, type=kind, default=default, metavar="FOLDER")
    options = parser.parse_args(arguments)
    from benchmarks import _picture, _plots  # need matplotlib

    def plots(name: str, results: dict) -> list[str]:
        folder = options.out / "benchmarks"
        files = [
            _plots.write(plot, results, folder)
            for plot in _plots.PLOTS
            if plot.benchmark == name
        ]
        if name == "against_peers":
            files.insert(0, _picture.write(results, folder))
        return [file.relative_to(options.out).as_posix() for file in files]

    text = page(options.results, plots)
    options.out.mkdir(parents=True, exist_ok=True)
    pages = {"benchmarks": text}
    networks = options.results / f"{models.NAME}.json"
    if networks.exists():
        pages["models"] = models.page(harness.read_json(networks, models.NAME))
    for name, text in pages.items():
        path = options.out / f"{name}.md"
        path.write_text(text)
        print(f"Written to {path}.")


if __name__ == "__main__":
    main()
