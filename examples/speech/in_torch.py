"""The recogniser by PyTorch's modules, with the same weights, to compare times with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import numpy as np

from prnn_jax import convert

from .config import ModelConfig
from .model import FRAME_STRIDE, FrontEnd, Recogniser

if TYPE_CHECKING:
    import torch


def label() -> str:
    """For tables: it computes on the CPU, wherever JAX does."""
    return "PyTorch" if jax.default_backend() == "cpu" else "PyTorch, on the CPU"


def network(config: ModelConfig, recogniser: Recogniser):
    """Its `Network`; None where PyTorch is not there or has no such layers."""
    try:
        import torch
    except ImportError:
        return None
    if config.kind == "transducer" or config.cell != "lstm":
        return None
    if config.direction == "both" or config.skip_connections:
        return None
    if config.dtype != "float32":
        return None
    from torch import nn

    def tensor(array) -> torch.Tensor:
        return torch.from_numpy(np.array(array))

    def norm_of(scale, bias, epsilon: float) -> nn.LayerNorm:
        norm = nn.LayerNorm(len(scale), epsilon)
        norm.load_state_dict({"weight": tensor(scale), "bias": tensor(bias)})
        return norm

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            stack, front = recogniser.recurrent, recogniser.front_end
            self.mean = tensor(recogniser.normalise.mean[...])
            self.deviation = tensor(recogniser.normalise.deviation[...])
            self.conv = nn.Parameter(tensor(front.conv.kernel[...]).permute(2, 1, 0))
            self.conv_bias = nn.Parameter(tensor(front.conv.bias[...]))
            self.front_norm, self.norm = (
                norm_of(norm.scale[...], norm.bias[...], norm.epsilon)
                for norm in (front.norm, recogniser.norm)
            )
            self.norms, self.layers = nn.ModuleList(), nn.ModuleList()
            for layer, norm in zip(stack.layers, stack.norms, strict=True):
                self.norms.append(norm_of(norm["scale"][...], norm["bias"][...], 1e-5))
                lstm = nn.LSTM(
                    layer.in_features, layer.hidden_features, batch_first=True
                )
                arrays = convert.to_pytorch("LSTM", [layer.params])
                lstm.load_state_dict({key: tensor(a) for key, a in arrays.items()})
                self.layers.append(lstm)
            self.dropout = nn.Dropout(config.dropout)
            row = tensor(recogniser.lookahead.weights[...])
            self.row = nn.Parameter(row.T[:, None])
            self.out = nn.Linear(len(row.T), recogniser.out.out_features)
            kernel, bias = recogniser.out.kernel[...], recogniser.out.bias[...]
            self.out.load_state_dict({"weight": tensor(kernel).T, "bias": tensor(bias)})

        def encode(self, x, states):
            """Of normalised features, behind BEFORE frames of what came earlier."""
            y = nn.functional.conv1d(
                x.mT, self.conv, self.conv_bias, stride=FRAME_STRIDE
            ).mT
            y = self.front_norm(y).relu()
            after = []
            for n, lstm in enumerate(self.layers):
                y = self.dropout(y) if n else y
                y, state = lstm(self.norms[n](y), states and states[n])
                after.append(state)
            return y, after

        def decide(self, y):
            """Logits of outputs of `encode`, the last of which are waited for."""
            y = nn.functional.conv1d(y.mT, self.row, groups=len(self.row)).mT
            return self.out(self.dropout(self.norm(y)))

        def forward(self, features, frames):
            """As `Recogniser.__call__`."""
            before = torch.arange(features.shape[1]) < frames[:, None]
            x = (features - self.mean) / self.deviation * before[..., None]
            pad = nn.functional.pad
            y, _ = self.encode(pad(x, (0, 0, FrontEnd.BEFORE, FRAME_STRIDE - 1)), None)
            used = torch.arange(y.shape[1]) < -(-frames // FRAME_STRIDE)[:, None]
            return self.decide(pad(y * used[..., None], (0, 0, 0, config.lookahead)))

    return Network().eval()
