"""How long a chunk of a stream takes: here, with lax.scan, and in PyTorch."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from . import in_torch
from .config import RunConfig
from .model import Recogniser
from .stream import chunk_model
from .timing import milliseconds
from .weights import Weights


class Latency(NamedTuple):
    """Milliseconds for a chunk of `chunk_ms` of sound, and their share of it."""

    what: str
    chunk_ms: int
    p50_ms: float
    p99_ms: float

    @property
    def real_time_factor(self) -> float:
        """Below 1 it keeps up."""
        return self.p50_ms / self.chunk_ms


def measure(
    config: RunConfig,
    recogniser: Recogniser,
    chunks_ms: Sequence[int],
    repeats: int,
) -> Iterator[Latency]:
    """Whole networks, taking turns, so that a busy moment hits all alike."""
    scan = dataclasses.replace(config.model, implementation="scan")
    for chunk_ms in chunks_ms:
        ways: dict[str, Callable[[], object]] = {
            "prnn_jax, prepared": _jax_way(config, recogniser, chunk_ms, "prepared"),
            "prnn_jax, int8": _jax_way(config, recogniser, chunk_ms, "int8"),
            "prnn_jax": _jax_way(config, recogniser, chunk_ms, "plain"),
            "lax.scan": _jax_way(
                dataclasses.replace(config, model=scan), recogniser, chunk_ms, "plain"
            ),
        }
        if torch_way := _torch_way(config, recogniser, chunk_ms):
            ways[in_torch.label()] = torch_way
        for what, ms in milliseconds(ways, repeats, warm_up=10).items():
            p50, p99 = np.percentile(ms, [50, 99])
            yield Latency(what, chunk_ms, float(p50), float(p99))


def _jax_way(
    config: RunConfig, recogniser: Recogniser, chunk_ms: int, weights: Weights
) -> Callable[[], object]:
    model = chunk_model(config, recogniser, chunk_ms, weights)
    features = _features(config, model.chunk)
    state = model.start

    def advance():
        nonlocal state
        state, logits = model.advance(state, features, model.chunk)
        return jax.block_until_ready(logits)

    return advance


def _torch_way(
    config: RunConfig, recogniser: Recogniser, chunk_ms: int
) -> Callable[[], object] | None:
    torch_network = in_torch.network(config.model, recogniser)
    if torch_network is None:
        return None
    import torch

    model = chunk_model(config, recogniser, chunk_ms)
    features = torch.from_numpy(_features(config, model.chunk))[None]
    before = torch.zeros(model.start.frames.shape)
    waiting = torch.zeros(model.start.waiting.shape)
    states = None

    @torch.inference_mode()
    def advance():
        nonlocal before, waiting, states
        x = (features - torch_network.mean) / torch_network.deviation
        x = torch.cat([before, x], 1)
        before = x[:, x.shape[1] - before.shape[1] :]
        y, states = torch_network.encode(x, states)
        y = torch.cat([waiting, y], 1)
        waiting = y[:, y.shape[1] - waiting.shape[1] :]
        return torch_network.decide(y)[0]

    return advance


def _features(config: RunConfig, frames: int) -> np.ndarray:
    """The same for all: the time does not depend on them, the outputs do."""
    shape = (frames, config.features.mel_bins)
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)
