"""A training as it goes: a bar, a line an epoch, metrics.jsonl and a picture."""

import json
import time
from pathlib import Path
from typing import Self

import numpy as np
from matplotlib.figure import Figure
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from . import files
from .report import Report
from .tensorboard import TensorBoard


class TrainingProgress:
    """metrics.jsonl has each step and epoch once, however often we begin.

    board: gets the same.
    """

    def __init__(self, report: Report, file: Path, board: TensorBoard | None = None):
        self._report, self._file, self._board = report, file, board
        self._records: list[dict] = []
        self._start = time.perf_counter()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=report.console,
            disable=not report.console.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task("compiling")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_) -> None:
        self._bar.stop()
        if self._board:
            self._board.close()

    def begin(self, step: int, steps: int) -> None:
        """Forgets what is recorded of steps after `step`: they will be taken again."""
        if self._file.exists():
            self._records = [r for r in read(self._file) if r["step"] <= step]
        lines = [json.dumps(record) + "\n" for record in self._records]
        files.write(self._file, "".join(lines))
        if self._board:
            self._board.begin(self._records)
        if step:
            left = "" if step < steps else ": nothing is left to train"
            self._report.say(f"going on after step {step} of {steps}{left}")
        self._bar.update(self._task, completed=step, total=steps)

    def step(self, step: int, epoch: int, loss: float) -> None:
        """Moves the bar on."""
        self._record(kind="step", step=step, epoch=epoch, loss=loss)
        description = f"epoch {epoch} loss {loss:.3f}"
        self._bar.update(self._task, advance=1, description=description)

    def epoch(self, epoch: int, step: int, dev_cer: float, seconds: float) -> None:
        """Prints a line."""
        steps = [r for r in self._records if r["kind"] == "step"]
        loss = float(np.mean([r["loss"] for r in steps if r["epoch"] == epoch]))
        self._record(
            kind="epoch",
            epoch=epoch,
            step=step,
            loss=loss,
            dev_cer=dev_cer,
            seconds=seconds,
        )
        self._report.say(
            f"epoch {epoch:2d}   loss {loss:.3f}   dev CER {100 * dev_cer:6.2f} %   "
            f"{time.perf_counter() - self._start:4.0f} s"
        )

    def plot(self, file: Path) -> None:
        """Loss and dev error rate over the epochs."""
        epochs = [record for record in self._records if record["kind"] == "epoch"]
        if not epochs:
            return
        numbers = [record["epoch"] for record in epochs]
        figure = Figure(figsize=(8, 3), layout="constrained")
        left, right = figure.subplots(1, 2)
        left.plot(numbers, [record["loss"] for record in epochs], "o-")
        left.set(xlabel="epoch", ylabel="loss per label", yscale="log")
        rates = [100 * record["dev_cer"] for record in epochs]
        right.plot(numbers, rates, "o-")
        right.set(xlabel="epoch", ylabel="dev CER [%]")
        right.set_yscale("symlog", linthresh=1)  # it may be 0
        right.set_ylim(0, None)
        for axes in (left, right):
            axes.grid(alpha=0.3)
        figure.savefig(file, dpi=80)

    def _record(self, **values) -> None:
        self._records.append(values)
        with self._file.open("a") as file:
            file.write(json.dumps(values) + "\n")
        if self._board:
            self._board.record(values)


def read(file: Path) -> list[dict]:
    """The records of a run; up to what is no record: the last may be cut off."""
    records = []
    for line in file.read_text().splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            break
        if not isinstance(record, dict) or "step" not in record:
            break
        records.append(record)
    return records
