"""A word model (embedding, LSTMs, softmax) and its training, in JAX and in PyTorch.

Both start from the same numbers and take the same steps: plain SGD on the negative
log-likelihood, its mean over the rows and sum over the steps, with the norm of all
gradients clipped; states go on from batch to batch.
"""

import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

import prnn_jax
from benchmarks import _points
from prnn_jax import convert

#: With a clip of 0.2 for each step the model learns faster, but training is chaotic:
#: what two runs differ by grows tenfold in a few batches, and nothing can be compared.
LEARNING_RATE, CLIP = 1.0, 0.2

#: Takes a step on words `[batch, steps + 1]`; mean negative log-likelihood of a word.
Trainer = Callable[[np.ndarray], float]


@dataclass(frozen=True)
class Model:
    """Sizes of the model and of a batch, and the dropout between layers."""

    embed: int = 650
    hidden: int = 650
    vocabulary: int = 2000
    layers: int = 2
    batch: int = 32
    steps: int = 35
    dropout: float = 0.0


def weights(model: Model) -> dict:
    """The numbers that all begin with; uniform, as layers are commonly initialised."""
    random = np.random.default_rng(0)
    hidden, wide = model.hidden, 4 * model.hidden

    def uniform(*shape: int, bound: float = hidden**-0.5) -> np.ndarray:
        return random.uniform(-bound, bound, shape).astype(np.float32)

    inputs = (model.embed, *(hidden for _ in range(model.layers - 1)))
    return {
        "embedding": uniform(model.vocabulary, model.embed, bound=0.1),
        "layers": [
            prnn_jax.Params(uniform(size, wide), uniform(hidden, wide), uniform(wide))
            for size in inputs
        ],
        "w_out": uniform(hidden, model.vocabulary),
        "b_out": np.zeros(model.vocabulary, np.float32),
    }


# ---- JAX -----------------------------------------------------------------------------


def jax_trainer(model: Model, implementation: str) -> Trainer:
    """With our layers, native or scan."""

    def loss(params, state, words, key):
        x = params["embedding"][words[:, :-1]]
        y, state = prnn_jax.stack(
            "lstm",
            x,
            params["layers"],
            state,
            dropout=model.dropout,
            key=key,
            implementation=implementation,
        )
        logits = jax.nn.log_softmax(y @ params["w_out"] + params["b_out"])
        chosen = jnp.take_along_axis(logits, words[:, 1:, None], -1)
        mean = -jnp.mean(chosen)
        return mean * model.steps, (state, mean)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, words, number):
        key = jax.random.fold_in(jax.random.key(1), number)
        gradients, (state, mean) = jax.grad(loss, has_aux=True)(
            params, state, words, key
        )
        squares = jax.tree.map(lambda g: jnp.vdot(g, g), gradients)
        norm = jnp.sqrt(sum(jax.tree.leaves(squares)))
        rate = LEARNING_RATE * jnp.minimum(1, CLIP / norm)
        params = jax.tree.map(lambda p, g: p - rate * g, params, gradients)
        return params, state, mean

    params = jax.tree.map(jnp.array, weights(model))
    shape = (model.layers, 2, model.batch, model.hidden)
    state = tuple((jnp.array(h), jnp.array(c)) for h, c in np.zeros(shape, np.float32))
    taken = 0

    def train(words: np.ndarray) -> float:
        nonlocal params, state, taken
        params, state, mean = step(params, state, words, taken)
        taken += 1
        return float(mean)

    return train


# ---- PyTorch -------------------------------------------------------------------------


def torch_trainer(model: Model) -> Trainer:
    """With torch.nn."""
    import torch

    torch.set_num_threads(_points.threads())
    torch.manual_seed(1)
    numbers = weights(model)
    embedding = torch.nn.Embedding(model.vocabulary, model.embed)
    lstm = torch.nn.LSTM(
        model.embed,
        model.hidden,
        num_layers=model.layers,
        dropout=model.dropout,
        batch_first=True,
    )
    output = torch.nn.Linear(model.hidden, model.vocabulary)
    _load(embedding, {"weight": numbers["embedding"]})
    _load(lstm, convert.to_pytorch("LSTM", numbers["layers"]))
    _load(output, {"weight": numbers["w_out"].T, "bias": numbers["b_out"]})
    modules = torch.nn.ModuleList([embedding, lstm, output])
    # Ours has one bias for the two of torch, which would take every step of it twice.
    for name, parameter in lstm.named_parameters():
        parameter.requires_grad_(not name.startswith("bias_hh"))
    trained = [p for p in modules.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=LEARNING_RATE)
    state = None

    def train(words: np.ndarray) -> float:
        nonlocal state
        given = torch.from_numpy(words.astype(np.int64))
        optimizer.zero_grad(set_to_none=True)
        y, state = lstm(embedding(given[:, :-1]), state)
        state = tuple(s.detach() for s in state)
        logits = output(y).flatten(0, 1)
        mean = torch.nn.functional.cross_entropy(logits, given[:, 1:].flatten())
        (mean * model.steps).backward()
        torch.nn.utils.clip_grad_norm_(trained, CLIP)
        optimizer.step()
        return mean.item()

    return train


def _load(module, arrays: dict[str, np.ndarray]) -> None:
    import torch

    tensors = {n: torch.from_numpy(np.ascontiguousarray(a)) for n, a in arrays.items()}
    module.load_state_dict(tensors)


# ---- in a worker's process -----------------------------------------------------------

_trainers: dict[str, tuple[Trainer, np.ndarray]] = {}


def curve(name: str, model: Model, batches: np.ndarray) -> list[float]:
    """Perplexity at each of the batches, from the start.

    Args:
      name: "native", "scan" or "torch".
      model: what is trained.
      batches: `[batches, batch, steps + 1]`.
    """
    made = torch_trainer(model) if name == "torch" else jax_trainer(model, name)
    _trainers[name] = made, batches[0]
    return [math.exp(made(words)) for words in batches]


def sample(name: str, calls: int) -> float:
    """Seconds for one of several steps of the trainer that `curve` left."""
    train, words = _trainers[name]
    start = time.perf_counter()
    for _ in range(calls):
        train(words)
    return (time.perf_counter() - start) / calls
