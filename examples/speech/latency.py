"""How long a chunk of a stream takes: here, with lax.scan, and in PyTorch."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from prnn_jax import convert

from .config import RunConfig
from .model import FRAME_STRIDE, Recogniser
from .stream import chunk_model


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
    chunks_ms: Sequence[int] = (40, 80, 160, 320),
    repeats: int = 300,
) -> Iterator[Latency]:
    """Whole networks, taking turns, so that a busy moment hits all alike."""
    scan = dataclasses.replace(config.model, implementation="scan")
    for chunk_ms in chunks_ms:
        ways: dict[str, Callable[[], object]] = {
            "prnn_jax, prepared": _jax_way(config, recogniser, chunk_ms, prepared=True),
            "prnn_jax": _jax_way(config, recogniser, chunk_ms, prepared=False),
            "lax.scan": _jax_way(
                dataclasses.replace(config, model=scan), recogniser, chunk_ms, False
            ),
        }
        if torch_way := _torch_way(config, recogniser, chunk_ms):
            ways["PyTorch"] = torch_way
        for way in ways.values():
            for _ in range(10):
                way()  # compiles, warms up
        seconds = np.zeros((repeats, len(ways)))
        for repeat in range(repeats):
            for column, way in enumerate(ways.values()):
                start = time.perf_counter()
                way()
                seconds[repeat, column] = time.perf_counter() - start
        for what, of_way in zip(ways, seconds.T, strict=True):
            p50, p99 = np.percentile(1e3 * of_way, [50, 99])
            yield Latency(what, chunk_ms, float(p50), float(p99))


def _jax_way(
    config: RunConfig, recogniser: Recogniser, chunk_ms: int, prepared: bool
) -> Callable[[], object]:
    model = chunk_model(config, recogniser, chunk_ms, prepared=prepared)
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
    """The same network by PyTorch's modules; None where these are not there."""
    try:
        import torch
    except ImportError:
        return None
    if config.model.cell != "lstm" or config.model.skip_connections:
        return None
    from torch import nn

    def tensor(array):
        return torch.from_numpy(np.array(array))

    def norm_of(scale, bias):
        norm = nn.LayerNorm(len(scale), eps=1e-5)
        norm.load_state_dict({"weight": tensor(scale), "bias": tensor(bias)})
        return norm

    layers = []
    stack = recogniser.recurrent
    for layer, norm in zip(stack.layers, stack.norms, strict=True):
        arrays = convert.to_pytorch("LSTM", [layer.params])
        lstm = nn.LSTM(layer.in_features, layer.hidden_features, batch_first=True)
        lstm.load_state_dict({name: tensor(array) for name, array in arrays.items()})
        layers.append((norm_of(norm["scale"][...], norm["bias"][...]), lstm))
    conv = tensor(recogniser.front_end.conv.kernel[...]).permute(2, 1, 0).contiguous()
    conv_bias = tensor(recogniser.front_end.conv.bias[...])
    row = tensor(recogniser.lookahead.weights[...]).T[:, None].contiguous()
    front_norm, last_norm = (
        norm_of(norm.scale[...], norm.bias[...])
        for norm in (recogniser.front_end.norm, recogniser.norm)
    )
    out, out_bias = (
        tensor(array[...]) for array in (recogniser.out.kernel, recogniser.out.bias)
    )
    mean, deviation = (
        tensor(value[...])
        for value in (recogniser.normalise.mean, recogniser.normalise.deviation)
    )
    frames = chunk_ms // config.features.hop_ms
    features = tensor(_features(config, frames))[None]
    model = chunk_model(config, recogniser, chunk_ms)
    before = torch.zeros(model.start.frames.shape)
    waiting = torch.zeros(model.start.waiting.shape)
    states = [None] * len(layers)

    @torch.inference_mode()
    def advance():
        nonlocal before, waiting
        x = torch.cat([before, (features - mean) / deviation], 1)
        before = x[:, x.shape[1] - before.shape[1] :]
        y = nn.functional.conv1d(x.mT, conv, conv_bias, stride=FRAME_STRIDE).mT
        y = front_norm(y).relu()
        for n, (norm, lstm) in enumerate(layers):
            y, states[n] = lstm(norm(y), states[n])
        y = torch.cat([waiting, y], 1)
        waiting = y[:, y.shape[1] - waiting.shape[1] :]
        y = nn.functional.conv1d(y.mT, row, groups=len(row)).mT
        return nn.functional.linear(last_norm(y), out.T, out_bias)[0]

    return advance


def _features(config: RunConfig, frames: int) -> np.ndarray:
    """The same for all: the time does not depend on them, the outputs do."""
    shape = (frames, config.features.mel_bins)
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)
