"""Training on several devices: each has its rows of a batch, and all weights.

XLA adds up what their gradients are. The devices may belong to several processes, each
of which reads the corpus and makes the same batches, and keeps its own devices' rows.
"""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from .errors import SpeechError


@dataclass(frozen=True)
class Cluster:
    """The processes that train together, on one machine or several."""

    coordinator: str | None = None
    """HOST:PORT that the first process listens at; none: this process is alone."""
    processes: int = 1
    process: int = 0
    """Which this one is, from 0; the run's folder must be the same for all."""

    def join(self) -> None:
        """Waits for the others; before anything is computed."""
        if self.coordinator is None:
            if self.processes != 1 or self.process != 0:
                raise SpeechError("--processes and --process need --coordinator")
            return
        if not 0 <= self.process < self.processes:
            raise SpeechError(
                f"expected --process from 0 to below --processes, got {self.process} "
                f"and {self.processes}"
            )
        if not self.coordinator.rpartition(":")[2].isdecimal():
            raise SpeechError(
                f"expected HOST:PORT for --coordinator, got {self.coordinator!r}"
            )
        try:
            jax.distributed.initialize(self.coordinator, self.processes, self.process)
        except RuntimeError as error:
            raise SpeechError(f"{self.coordinator}: {error}") from None


class Devices:
    """The first so many devices, of all processes."""

    def __init__(self, count: int):
        available = jax.devices()
        if count > len(available):
            raise SpeechError(
                f"expected train.devices of at most {len(available)}, which JAX sees "
                f"here, got {count}; on a CPU XLA_FLAGS="
                f"--xla_force_host_platform_device_count={count} makes more"
            )
        if jax.process_count() > 1 and count != len(available):
            raise SpeechError(
                f"expected train.devices of {len(available)}, all that "
                f"{jax.process_count()} processes have, got {count}"
            )
        mesh = jax.make_mesh(
            (count,), ("batch",), (AxisType.Auto,), devices=available[:count]
        )
        self.whole = NamedSharding(mesh, P())
        self._rows = NamedSharding(mesh, P("batch"))

    def share(self, batch: Any) -> Any:
        """Arrays whose rows are divided."""
        return jax.tree.map(lambda array: _placed(array, self._rows), batch)

    def copy(self, tree: Any) -> Any:
        """Arrays that each device has all of."""
        return jax.tree.map(lambda array: _placed(array, self.whole), tree)

    def local(self, tree: Any) -> Any:
        """What one device of this process has of such arrays."""
        return jax.tree.map(lambda array: array.addressable_data(0), tree)


def _placed(array: Any, sharding: NamedSharding) -> jax.Array:
    array = np.asarray(array)
    return jax.make_array_from_callback(array.shape, sharding, lambda at: array[at])
