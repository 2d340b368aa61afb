"""What a run shows: progress, tables, metrics.jsonl and two pictures."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from . import text
from .config import FeatureConfig
from .dataset import Utterance
from .decode import greedy
from .model import FRAME_STRIDE


class Report:
    """Lines on the terminal and, where a run has a folder, in its metrics.jsonl."""

    def __init__(self, run: Path | None = None):
        self.console = Console()
        self._metrics = None
        if run is not None:
            self._metrics = run / "metrics.jsonl"
            self._metrics.write_text("")

    def say(self, line: str) -> None:
        """Prints a line as it is: no colours, no folding."""
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def record(self, **values) -> None:
        """Adds a line to metrics.jsonl."""
        if self._metrics is not None:
            with self._metrics.open("a") as file:
                file.write(json.dumps(values) + "\n")

    def speakers(self, rates: dict[str, tuple[int, float]]) -> None:
        """Prints a table of the error rate of each speaker."""
        table = Table("speaker", "utterances", "CER")
        for speaker, (utterances, rate) in rates.items():
            table.add_row(speaker, str(utterances), f"{100 * rate:.2f} %")
        self.console.print(table)

    def sentences(self, utterances: Sequence[Utterance], texts: Sequence[str]) -> None:
        """Prints what was said above what was understood."""
        for utterance, hypothesis in zip(utterances, texts, strict=True):
            self.say(f"  ref {utterance.clip.text}")
            self.say(f"  hyp {hypothesis}")


class TrainingProgress:
    """A bar while training on a terminal; a line after every epoch everywhere."""

    def __init__(self, report: Report, steps: int):
        self._report = report
        self._history: list[dict[str, float]] = []
        self._steps_done = 0
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=report.console,
            disable=not report.console.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task("compiling", total=steps)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_) -> None:
        self._bar.stop()

    def step(self, epoch: int, loss: float) -> None:
        """Moves the bar on."""
        self._steps_done += 1
        self._report.record(kind="step", step=self._steps_done, epoch=epoch, loss=loss)
        description = f"epoch {epoch} loss {loss:.3f}"
        self._bar.update(self._task, advance=1, description=description)

    def epoch(self, **values: float) -> None:
        """Prints a line, and keeps the values for `plot`."""
        self._history.append(values)
        self._report.record(kind="epoch", **values)
        self._report.say(
            f"epoch {values['epoch']:2d}   loss {values['loss']:.3f}   "
            f"dev CER {100 * values['dev_cer']:6.2f} %   {values['seconds']:4.0f} s"
        )

    def plot(self, file: Path) -> None:
        """Loss and dev error rate over the epochs."""
        epochs = [values["epoch"] for values in self._history]
        figure = Figure(figsize=(9, 3.4), layout="constrained")
        left, right = figure.subplots(1, 2)
        left.plot(epochs, [values["loss"] for values in self._history], "o-")
        left.set(xlabel="epoch", ylabel="CTC loss per character", yscale="log")
        rates = [100 * values["dev_cer"] for values in self._history]
        right.plot(epochs, rates, "o-")
        right.set(xlabel="epoch", ylabel="dev CER [%]", yscale="symlog", ylim=(0, None))
        for axes in (left, right):
            axes.grid(alpha=0.3)
        figure.savefig(file, dpi=120)


def plot_posteriors(
    file: Path, utterance: Utterance, logits: np.ndarray, config: FeatureConfig
) -> None:
    """The label probabilities below the features, over the same time axis."""
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    posteriors = exponentials / exponentials.sum(-1, keepdims=True)
    shown = np.flatnonzero(posteriors.max(0) > 0.1)
    names = ("blank", "space", *text.CHARACTERS[1:])
    frame_seconds = config.hop_ms / 1000
    seconds = len(utterance.features) * frame_seconds
    output_seconds = FRAME_STRIDE * frame_seconds * len(logits)

    figure = Figure(figsize=(10, 5), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(1, 1.5))
    upper.imshow(
        utterance.features.T,
        origin="lower",
        aspect="auto",
        extent=(0, seconds, 0, config.mel_bins),
        cmap="magma",
    )
    upper.set(ylabel="mel bin")
    upper.set_title(f"ref {utterance.clip.text}\nhyp {greedy(logits)}", fontsize=9)
    lower.imshow(
        posteriors[:, shown].T,
        origin="lower",
        aspect="auto",
        extent=(0, output_seconds, -0.5, len(shown) - 0.5),
        cmap="Blues",
        interpolation="nearest",
    )
    lower.set(xlabel="seconds")
    lower.set_yticks(range(len(shown)), [names[label] for label in shown])
    figure.savefig(file, dpi=120)
