"""What metrics.jsonl records, for TensorBoard too, by tensorboardX."""

import shutil
from collections.abc import Iterable
from pathlib import Path

from .errors import SpeechError

_SCALARS = {
    "step": {"loss": "train/loss"},
    "epoch": {"dev_cer": "dev/CER", "seconds": "epoch/seconds"},
}


class TensorBoard:
    """A folder of scalars, made anew of all records whenever a training goes on."""

    def __init__(self, folder: Path):
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise SpeechError(
                "--tensorboard needs `pip install tensorboardX`; without it, "
                "metrics.jsonl has the same numbers"
            ) from None
        self._make_writer, self._folder, self._writer = SummaryWriter, folder, None

    def begin(self, records: Iterable[dict]) -> None:
        """Writes what is recorded already; what was written of later steps goes."""
        self.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._writer = self._make_writer(str(self._folder))
        for record in records:
            self.record(record)

    def record(self, record: dict) -> None:
        """Adds a record of `progress.TrainingProgress`."""
        for key, name in _SCALARS[record["kind"]].items():
            self._writer.add_scalar(name, record[key], record["step"])

    def close(self) -> None:
        """Writes what is left."""
        if self._writer:
            self._writer.close()
