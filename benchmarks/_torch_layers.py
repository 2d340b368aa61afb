"""Layers in PyTorch: torch.nn, and on a GPU what is built upon PyTorch."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from benchmarks._points import Arrays, Candidate, Point, Result, gradients, threads
from benchmarks.gpu import peers as gpu_peers
from prnn_jax import Params, convert
from prnn_jax.convert._shared.layouts import Layout, from_params, to_params

#: Of haste, whose gates are i g f o and z r n.
_HASTE = {
    "lstm": Layout("lstm", ("kernel",), ("recurrent_kernel",), ("bias",), order="igfo"),
    "gru": Layout(
        "gru",
        ("kernel",),
        ("recurrent_kernel",),
        ("bias",),
        bias_hh=("recurrent_bias",),
        order="zrn",
    ),
}


def eager(point: Point, arrays: Arrays) -> Candidate:
    """torch.nn as users call it; on a GPU that is cuDNN."""
    return _torch_nn(point, arrays)


def autocast(point: Point, arrays: Arrays) -> Candidate:
    """torch.nn with parameters in float32, computed with in the point's dtype."""
    import torch

    def cast(layer):
        def run(x):
            with torch.autocast(x.device.type, getattr(torch, point.dtype)):
                return layer(x)

        return run

    return _torch_nn(point, arrays, through=cast, dtype="float32")


def compiled(point: Point, arrays: Arrays) -> Candidate:
    """torch.nn through torch.compile."""
    import torch

    return _torch_nn(point, arrays, through=torch.compile)


def graph(point: Point, arrays: Arrays) -> Candidate:
    """torch.nn, replayed from a CUDA graph."""
    graphs = []

    def replayed(run):
        gpu_peers._first_captured(run, _waited, graphs)
        return graphs[0][1]  # what the captured call returned

    return _torch_nn(point, arrays, on_gpu=replayed)


def haste(point: Point, arrays: Arrays) -> Candidate:
    """haste_pytorch (Nanavati 2020, github.com/lmnt-com/haste)."""
    import haste_pytorch

    layout, size = _HASTE[point.cell], point.hidden_size
    layer = getattr(haste_pytorch, point.cell.upper())(size, size, batch_first=True)
    named = dict(layer.named_parameters())
    for name, array in from_params(layout, arrays.params).items():
        named[name].data.copy_(_tensor(point, array))
    layer.train(point.mode == "train")
    return _candidate(point, arrays, layer, named, lambda g: to_params(layout, g))


def flashrnn(point: Point, arrays: Arrays) -> Candidate:
    """FlashRNN's fused LSTM after a product (Pöppel et al. 2024, arXiv:2412.07752)."""
    from flashrnn import flashrnn as run

    size = point.hidden_size
    w_ih, w_hh, bias, _ = (
        None if a is None else _tensor(point, a).requires_grad_() for a in arrays.params
    )

    def layer(x):
        a_x = (x @ w_ih).unflatten(-1, (4, 1, size))  # one head
        weights = w_hh.unflatten(1, (4, 1, size)).permute(1, 2, 3, 0)  # out before in
        states, _ = run(a_x, weights, bias.view(4, 1, size), dtype=point.dtype)
        return states[0, :, :, 0], states

    named = {"w_ih": w_ih, "w_hh": w_hh, "b_ih": bias}
    return _candidate(point, arrays, layer, named, lambda g: Params(**g))


def _torch_nn(
    point: Point,
    arrays: Arrays,
    through: Callable = lambda layer: layer,
    dtype: str | None = None,
    **options,
) -> Candidate:
    """The layer of torch.nn with our parameters, in the point's dtype or another.

    The other options are those of `_candidate`.
    """
    import torch

    torch.set_num_threads(threads())
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    name, size = point.cell.upper(), point.hidden_size
    relu = {"nonlinearity": "relu"} if point.cell == "rnn" else {}
    layer = getattr(torch.nn, name)(size, size, batch_first=True, **relu)
    params = jax.tree.map(lambda a: a.astype(np.float32), arrays.params)
    state = convert.to_pytorch(name, [params])
    layer.load_state_dict({n: torch.from_numpy(a) for n, a in state.items()})
    layer = layer.to(_device(point), getattr(torch, dtype or point.dtype))
    named = dict(layer.named_parameters())

    def as_params(gradients):
        return convert.from_pytorch(name, gradients)[0]

    return _candidate(point, arrays, through(layer), named, as_params, **options)


def _waited(run: Callable) -> Any:
    import torch

    out = run()
    torch.cuda.synchronize()
    return out


def _candidate(
    point: Point,
    arrays: Arrays,
    layer: Callable,
    named: Mapping[str, Any],
    as_params: Callable[[Mapping], Params],
    on_gpu: Callable[[Callable], Any] = _waited,
) -> Candidate:
    """The layer, or its gradients.

    Args:
      point: says which of the two, and where.
      arrays: x, and the weights of the sum.
      layer: `x -> (y, state)`.
      named: its parameters, by name.
      as_params: makes ours of their gradients, by name, as NumPy's arrays.
      on_gpu: runs a function to its end there.
    """
    import torch

    x, weights = (_tensor(point, a) for a in (arrays.x, arrays.weights))
    leaves = [x.requires_grad_(point.mode == "train"), *named.values()]

    def forward():
        with torch.inference_mode():
            return layer(x)

    def train():
        return torch.autograd.grad(layer(x)[0], leaves, weights)

    def result(out) -> Result:
        if point.mode != "train":
            return {"y": _array(out[0])}
        dx, *others = (_array(gradient) for gradient in out)
        return gradients(dx, as_params(dict(zip(named, others, strict=True))))

    run = train if point.mode == "train" else forward
    return Candidate(run if point.platform == "cpu" else lambda: on_gpu(run), result)


def _device(point: Point) -> str:
    return "cuda" if point.platform == "gpu" else "cpu"


def _tensor(point: Point, array: Any) -> Any:
    import torch

    # NumPy's bfloat16 is none that torch knows.
    tensor = torch.from_numpy(array.astype(np.float32))
    return tensor.to(_device(point), getattr(torch, point.dtype))


def _array(tensor: Any) -> Any:
    return tensor.detach().float().cpu().numpy()
