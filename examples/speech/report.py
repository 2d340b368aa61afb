"""What the commands show: lines, tables, and a picture of what the network hears."""

import os
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import soundfile
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.figure import Figure
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from . import files
from .config import FeatureConfig, RunConfig
from .dataset import Skipped, Utterance
from .decode import Speller
from .errors import SpeechError
from .latency import Latency
from .metrics import Rate
from .model import FRAME_STRIDE
from .subwords import shown
from .text import Vocabulary
from .timing import StepTime

_SPEAKERS = 20  # of whom the error rates are shown, the highest


class Report:
    """Writes on the terminal."""

    def __init__(self):
        self.console = Console()

    def say(self, line: str) -> None:
        """Prints a line as it is: no colours, no folding."""
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def skipped(self, source: Path, skipped: Sequence[Skipped], file: Path) -> None:
        """Says how much of a corpus is left out, and why; `file` gets all of it."""
        lines = "".join(f"{clip}\t{reason}\n" for clip, reason in skipped)
        listed = f"all listed in {file}"
        try:
            if skipped:
                files.write(file, lines)
            elif file.exists():
                file.unlink()
        except OSError as error:  # a run of another's may be tested, too
            listed = f"which cannot be listed in {file} ({error.strerror})"
        if skipped:
            self.say(f"{source}: {len(skipped)} left out, {listed}; the first:")
        for clip, reason in skipped[:3]:
            self.say(f"  {clip}: {reason}")

    def bandwidth(self, file: Path, features: FeatureConfig) -> None:
        """Says so if a recording has nothing of what the highest features are of."""
        rate = soundfile.info(os.fsencode(file)).samplerate
        if rate < 2 * features.high_hz:
            self.say(
                f"{file} has {rate} Hz, which is nothing above {rate / 2:g} Hz; the "
                f"features go up to {features.high_hz:g} Hz (features.high_hz)"
            )

    def speakers(self, rates: dict[str, tuple[int, Rate]]) -> None:
        """Prints a table of the error rate of each speaker."""
        table = Table("speaker", "utterances", "CER (95 %)")
        shown = list(rates.items())[:_SPEAKERS]
        for speaker, (utterances, rate) in shown:
            table.add_row(escape(speaker), str(utterances), str(rate))
        self.console.print(table)
        if more := len(rates) - len(shown):
            self.say(f"and {more} speakers more, of no higher error rate")

    def sentences(self, utterances: Sequence[Utterance], texts: Sequence[str]) -> None:
        """Prints what was said above what was understood."""
        for utterance, hypothesis in zip(utterances, texts, strict=True):
            self.say(f"  ref {utterance.text}")
            self.say(f"  hyp {hypothesis}")

    def steps(self, times: Iterable[StepTime]) -> None:
        """Prints a table of the times of a training step."""
        table = Table("training step by", "p50 ms", "p10 to p90 ms", "utterances/s")
        for time in times:
            table.add_row(
                time.what,
                f"{time.p50_ms:.0f}",
                f"{time.p10_ms:.0f} to {time.p90_ms:.0f}",
                f"{time.utterances_per_second:.0f}",
            )
        self.console.print(table)

    def latencies(self, latencies: Iterable[Latency]) -> None:
        """Prints a table of streaming's times."""
        table = Table("chunk", "network by", "p50 ms", "p99 ms", "real-time factor")
        for latency in latencies:
            table.add_row(
                f"{latency.chunk_ms} ms",
                latency.what,
                f"{latency.p50_ms:.3f}",
                f"{latency.p99_ms:.3f}",
                f"{latency.real_time_factor:.4f}",
            )
        self.console.print(table)


def check_picture(file: Path) -> None:
    """SpeechError where no picture can be of the format that the name ends in."""
    known = sorted(FigureCanvasBase.get_supported_filetypes())
    if file.suffix.removeprefix(".").lower() not in known:
        raise SpeechError(f"{file}: expected a name that ends in .{', .'.join(known)}")


def plot_posteriors(
    file: Path,
    utterance: Utterance,
    logits: np.ndarray,
    config: RunConfig,
    vocabulary: Vocabulary,
) -> None:
    """The label probabilities below the features, over the same time axis."""
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    posteriors = exponentials / exponentials.sum(-1, keepdims=True)
    seen = np.flatnonzero(posteriors.max(0) > 0.1)
    names = ["blank", *shown(vocabulary.pieces)]
    frame_seconds = config.features.hop_seconds
    seconds = len(utterance.features) * frame_seconds
    output_seconds = FRAME_STRIDE * frame_seconds * len(logits)

    figure = Figure(figsize=(10, 5), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(1, 1.5))
    upper.imshow(
        utterance.features.T,
        origin="lower",
        aspect="auto",
        extent=(0, seconds, 0, config.features.mel_bins),
        cmap="magma",
    )
    upper.set(ylabel="mel bin")
    text = Speller(vocabulary)(logits)
    upper.set_title(f"ref {utterance.text}\nhyp {text}", fontsize=9)
    lower.imshow(
        posteriors[:, seen].T,
        origin="lower",
        aspect="auto",
        extent=(0, output_seconds, -0.5, len(seen) - 0.5),
        cmap="Blues",
        interpolation="nearest",
    )
    lower.set(xlabel="seconds")
    lower.set_yticks(range(len(seen)), [names[label] for label in seen])
    _save(figure, file, dpi=120)


def plot_stream(
    file: Path, features: np.ndarray, added: Sequence[tuple[float, str]]
) -> None:
    """What a stream heard, and below it what the text grew by, and when.

    added: seconds of sound that had come in, and what they added; the end is the last.
    """
    seconds = max(time for time, _ in added)
    figure = Figure(figsize=(9, 4), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    upper.imshow(
        features.T,
        origin="lower",
        aspect="auto",
        extent=(0, seconds, 0, features.shape[1]),
        cmap="magma",
    )
    upper.set(ylabel="mel bin")
    row = 0
    for time, more in added:
        for n, part in enumerate(more.split(" ")):
            row += n > 0  # a word a row
            lower.text(time, row, part, ha="right" if time == seconds else "left")
    lower.set(xlabel="seconds of sound", ylabel="word", ylim=(row + 0.7, -1))
    lower.set_yticks(range(row + 1))
    lower.grid(alpha=0.3)
    _save(figure, file, dpi=80)


def _save(figure: Figure, file: Path, dpi: int) -> None:
    """Matplotlib warns of each letter that its font has not, of each time it is set."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figure.savefig(file, dpi=dpi)
    missing = [w for w in caught if "missing from font" in str(w.message)]
    if missing:
        print(f"{file}: boxes stand for letters that Matplotlib's font has not")
    for other in caught:
        if other not in missing:
            warnings.warn_explicit(
                other.message, other.category, other.filename, other.lineno
            )
