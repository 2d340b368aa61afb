"""What a training needs to go on, on disk: the last state and the best.

orbax writes a checkpoint under another name and renames it when all of it is there, so
a process may be killed at any time.
"""

import math
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from absl import logging
from orbax.checkpoint.checkpoint_managers import preservation_policy

from .errors import SpeechError


def _rank(metrics: Any) -> tuple[float, int]:
    """Less is better; of equal errors, the first."""
    return metrics["dev_cer"], metrics["step"]


class Checkpoints:
    """States of a training by step: any tree of arrays."""

    def __init__(self, run: Path, *, read_only: bool = False):
        self._run = run
        # orbax tells of every file, and of errors that the next call raises.
        logging.set_verbosity(logging.FATAL)
        folder = (run / "checkpoints").absolute()
        if not read_only and jax.process_index() == 0:
            # What a process left that was killed. orbax would do so in a thread, which
            # complains where the process ends before it.
            for unfinished in folder.glob("*.orbax-checkpoint-tmp*"):
                shutil.rmtree(unfinished, ignore_errors=True)
        last_and_best = preservation_policy.AnyPreservationPolicy(
            [
                preservation_policy.LatestN(1),
                preservation_policy.BestN(get_metric_fn=_rank, reverse=True, n=1),
            ]
        )
        self._manager = ocp.CheckpointManager(
            folder,
            item_handlers=ocp.StandardCheckpointHandler(),
            options=ocp.CheckpointManagerOptions(
                best_fn=_rank,
                best_mode="min",
                create=not read_only,
                preservation_policy=None if read_only else last_and_best,
                read_only=read_only,
            ),
        )

    @property
    def last(self) -> int | None:
        """The step of the newest checkpoint."""
        self._wait()
        return self._manager.latest_step()

    @property
    def best(self) -> int | None:
        """The step with the least error, of those after which there was a test."""
        return self._manager.best_step()

    def save(self, step: int, state: Any, dev_cer: float = math.inf) -> None:
        """Begins to write, when what came before is written; the training may go on."""
        arguments = ocp.args.StandardSave(_named(state))
        metrics = {"dev_cer": dev_cer, "step": step}
        self._written(lambda: self._manager.save(step, args=arguments, metrics=metrics))

    def restore(self, step: int | None, like: Any) -> Any:
        """The state after a step, or what `like` has of it: its shapes, its devices."""
        if step is None:
            raise SpeechError(f"{self._run}: no checkpoint is there; train first")
        self._wait()  # for what is being written
        leaves = _named(like)
        devices = {name: leaf.sharding for name, leaf in leaves.items()}
        one = next(iter(devices.values()))  # where what is not wanted goes
        saved = {
            name: jax.ShapeDtypeStruct(
                array.shape, array.dtype, sharding=devices.get(name, one)
            )
            for name, array in self._manager.item_metadata(step).items()
        }
        wanted = {name: leaf.shape for name, leaf in leaves.items()}
        shapes = {name: array.shape for name, array in saved.items()}
        if unfit := [name for name in wanted if wanted[name] != shapes.get(name)]:
            raise SpeechError(
                f"{self._run}: its checkpoint is of another model than its config.toml:"
                f" {unfit[0]} must be {list(wanted[unfit[0]])}, and is "
                f"{shapes.get(unfit[0], 'not there')}"
            )
        arrays = self._manager.restore(step, args=ocp.args.StandardRestore(saved))
        treedef = jax.tree.structure(like)
        return jax.tree.unflatten(treedef, [arrays[name] for name in wanted])

    def close(self) -> None:
        """Waits for what is being written."""
        self._written(self._manager.close)

    def _wait(self) -> None:
        self._written(self._manager.wait_until_finished)

    def _written(self, act: Callable[[], object]) -> None:
        """An error of a thread that writes comes with the next call."""
        try:
            act()
        except (OSError, ValueError) as error:  # the latter by tensorstore
            raise SpeechError(
                f"{self._run}: a checkpoint could not be written: {error}. One that is "
                "there before it is kept: make room, and give the same command to go on"
            ) from error


@contextmanager
def opened(run: Path, *, read_only: bool = False) -> Iterator[Checkpoints]:
    """The checkpoints of a run, closed in the end; another process may read only."""
    checkpoints = Checkpoints(run, read_only=read_only)
    try:
        yield checkpoints
    finally:
        checkpoints.close()


def _named(state: Any) -> dict[str, jax.Array]:
    """Leaves by their paths: what is on disk does not depend on Python's classes."""
    return {
        jax.tree_util.keystr(path): leaf
        for path, leaf in jax.tree.leaves_with_path(state)
    }
