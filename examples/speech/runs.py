"""The folder of a run: one configuration, one process that trains."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flax import nnx

from . import checkpoint, programs, settings
from .config import RunConfig
from .errors import SpeechError
from .model import Recogniser
from .train import TrainState

CONFIG = "config.toml"
METRICS = "metrics.jsonl"


@contextmanager
def training_in(run: Path, config: RunConfig) -> Iterator[None]:
    """Keeps the folder for this process and this configuration."""
    if run.exists() and not run.is_dir():
        raise SpeechError(f"{run}: is a file; expected a folder for --run")
    run.mkdir(parents=True, exist_ok=True)
    with (run / "lock").open("w") as lock:  # the system frees it, however we end
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SpeechError(
                f"{run}: another process trains there; give --run another folder"
            ) from None
        file = run / CONFIG
        if not any((run / "checkpoints").glob("[0-9]*")):
            # Of settings with which nothing was learnt there is nothing to keep.
            settings.save(config, file)
        elif different := settings.differences(settings.load(file), config):
            raise SpeechError(
                f"{run}: was begun with other settings ({'; '.join(different)}): give "
                f"the same to go on (--config {file}), or --run another folder"
            )
        yield


def load(run: Path) -> tuple[RunConfig, Recogniser]:
    """The configuration of a run and its best model."""
    if not (run / CONFIG).exists():
        raise SpeechError(f"{run}: no run is there; `train --run {run}` makes one")
    config = settings.load(run / CONFIG)
    programs.keep(config.data.programs)
    recogniser = Recogniser(config.model, config.features, nnx.Rngs(0))
    graph, params, statistics = nnx.split(recogniser, nnx.Param, ...)
    like = TrainState(None, params, statistics, None)
    with checkpoint.opened(run, read_only=True) as checkpoints:
        state = checkpoints.restore(checkpoints.best, like)
    return config, nnx.merge(graph, state.average, state.statistics)
