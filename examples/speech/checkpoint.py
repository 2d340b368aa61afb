"""What a training needs to go on, on disk: the last state and the best.

orbax writes a checkpoint under another name and renames it when all of it is there, so
a process may be killed at any time.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from absl import logging
from orbax.checkpoint.checkpoint_managers import preservation_policy

from .errors import SpeechError

_METRIC = "dev_cer"


class Checkpoints:
    """States of a training by step: any tree of arrays."""

    def __init__(self, run: Path):
        self._run = run
        logging.set_verbosity(logging.ERROR)  # orbax tells of every file
        self._manager = ocp.CheckpointManager(
            (run / "checkpoints").absolute(),
            item_handlers=ocp.StandardCheckpointHandler(),
            options=ocp.CheckpointManagerOptions(
                best_fn=lambda metrics: metrics[_METRIC],
                best_mode="min",
                cleanup_tmp_directories=True,  # of a process that was killed
                preservation_policy=preservation_policy.AnyPreservationPolicy(
                    [
                        preservation_policy.LatestN(1),
                        preservation_policy.BestN(
                            get_metric_fn=lambda metrics: metrics[_METRIC],
                            reverse=True,
                            n=1,
                        ),
                    ]
                ),
            ),
        )

    @property
    def last(self) -> int | None:
        """The step of the newest checkpoint."""
        self._manager.wait_until_finished()
        return self._manager.latest_step()

    @property
    def best(self) -> int | None:
        """The step with the least error, of those after which there was a test."""
        return self._manager.best_step()

    def save(self, step: int, state: Any, dev_cer: float = math.inf) -> None:
        """Begins to write; the training may go on."""
        self._manager.save(
            step, args=ocp.args.StandardSave(_named(state)), metrics={_METRIC: dev_cer}
        )

    def restore(self, step: int | None, like: Any) -> Any:
        """The state after a step, or what `like` has of it, in its shapes."""
        if step is None:
            raise SpeechError(f"{self._run}: no checkpoint is there; train first")
        self._manager.wait_until_finished()  # with what is being written
        device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        saved = {
            name: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=device)
            for name, array in self._manager.item_metadata(step).items()
        }
        wanted = {name: leaf.shape for name, leaf in _named(like).items()}
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
        self._manager.close()


@contextmanager
def opened(run: Path) -> Iterator[Checkpoints]:
    """The checkpoints of a run, closed in the end."""
    checkpoints = Checkpoints(run)
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
