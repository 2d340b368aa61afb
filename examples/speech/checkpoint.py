"""Parameters of a trained model on disk, beside the configuration it needs."""

from pathlib import Path

import jax
import numpy as np
from flax import nnx

from .config import RunConfig
from .model import Recogniser


def save(run: Path, config: RunConfig, recogniser: Recogniser) -> None:
    """Writes config.json and params.npz into the folder of the run."""
    config.save(run / "config.json")
    np.savez(run / "params.npz", **_named(recogniser))


def load(run: Path) -> tuple[RunConfig, Recogniser]:
    """What `save` wrote."""
    config = RunConfig.load(run / "config.json")
    recogniser = Recogniser(config.model, config.features, nnx.Rngs(0))
    state = nnx.state(recogniser, nnx.Param)
    with np.load(run / "params.npz") as arrays:
        different = set(_named(recogniser)) ^ set(arrays)
        if different:
            raise ValueError(f"{run}: parameters do not match: {sorted(different)}")
        state = jax.tree.map_with_path(
            lambda path, leaf: arrays[jax.tree_util.keystr(path)], state
        )
    nnx.update(recogniser, state)
    return config, recogniser


def _named(recogniser: Recogniser) -> dict[str, np.ndarray]:
    leaves = jax.tree.leaves_with_path(nnx.state(recogniser, nnx.Param))
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}
