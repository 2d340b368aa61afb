"""The speech example with a hundred layers: gradients, training, streams, memory."""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from speech_support import ALPHABET, streamed

from examples.speech import batches, corpora, dataset, settings, stream
from examples.speech import train as training
from examples.speech.__main__ import main
from examples.speech.config import AugmentConfig, ModelConfig, RunConfig
from examples.speech.model import Recogniser
from examples.speech.optimizer import make_optimizer

DEEP = RunConfig(
    augment=AugmentConfig(0, 0, 0),
    model=ModelConfig(
        layers=100,
        hidden_size=8,
        channels=8,
        lookahead=2,
        skip_connections=True,
        reserve="lean",
        dropout=0.0,
    ),
)


@pytest.fixture(scope="module")
def recogniser() -> Recogniser:
    return Recogniser(DEEP.model, DEEP.features, nnx.Rngs(0))


def batch() -> batches.Batch:
    random = np.random.default_rng(0)
    said = [
        dataset.Utterance(
            corpora.Clip(Path("none.ogg"), text),
            text,
            random.standard_normal((40, 40)).astype(np.float32),
            ALPHABET.encode(text),
        )
        for text in ("one", "two", "six")
    ]
    said[0].features[:20] = 0.0  # as augmentation hides them
    return next(batches.make_batches(said, batches.choose_shapes(said, 1), 3))


def test_a_hundred_layers_learn(recogniser):
    """Each has gradients like those of the others, and the loss falls."""
    config = replace(DEEP, train=replace(DEEP.train, warmup=0.0, average=0.0))
    given = batch()
    graph, params, statistics = nnx.split(recogniser, nnx.Param, ...)
    gradient = jax.jit(jax.value_and_grad(training.make_loss(config, graph)))
    optimizer = make_optimizer(config.train, 15)
    state = optimizer.init(params)

    @jax.jit
    def update(gradients, state, params):
        updates, state = optimizer.update(gradients, state, params)
        return jax.tree.map(jnp.add, params, updates), state

    losses, norms = [], []
    for _ in range(15):
        loss, gradients = gradient(params, statistics, given, jax.random.key(0))
        losses.append(float(loss))
        layers = gradients["recurrent"]["layers"].values()
        norms.append([float(jnp.linalg.norm(one.w_hh[...])) for one in layers])
        params, state = update(gradients, state, params)
    norms = np.array(norms)
    assert norms.shape == (15, 100)
    assert np.isfinite(norms).all()
    assert norms[0].min() > 1e-3 * norms[0].max()
    assert losses[-1] < 0.5 * losses[0]


def test_a_stream_of_a_hundred_layers_gives_what_the_whole_recording_gives(recogniser):
    model = stream.chunk_model(DEEP, recogniser, 160)
    features = np.random.default_rng(0).standard_normal((48, 40)).astype(np.float32)
    whole = recogniser(features[None], np.array([48]))[0]
    # Sums of another number of rows round differently, in a hundred layers.
    np.testing.assert_allclose(streamed(model, features), whole, atol=1e-4)


def test_lean_layers_need_less_memory_and_all_less_than_a_scan(capsys):
    layers, units, frames = 12, 16, 200
    sizes = {"layers": layers, "hidden-size": units, "channels": units}
    options = [f"--model.{name}={size}" for name, size in sizes.items()]
    main(["memory", *options, "--batch-size", "4", "--frames", str(frames)])
    title, *lines = capsys.readouterr().out.splitlines()
    assert title.endswith("for each utterance of 2 s:")
    needed = {
        way: float(size)
        for size, _, way in (line.strip().partition(" MiB by ") for line in lines)
    }
    assert list(needed) == ["prnn_jax", "prnn_jax, reserve=lean", "lax.scan"]
    native, lean, scan = needed.values()
    # A number for each unit, layer and output frame, of which there are four gates.
    one = 4 * layers * units * frames / 2 / 2**20
    assert lean < native - 3 * one
    assert native < scan


def test_memory_needs_two_rows():
    with pytest.raises(SystemExit, match="expected --batch-size of 2 at least"):
        main(["memory", "--batch-size", "1"])


def test_the_settings_of_a_deep_model():
    model = settings.load(Path(settings.__file__).with_name("deep.toml")).model
    assert (model.layers, model.reserve, model.skip_connections) == (100, "lean", True)
    assert model.channels == model.hidden_size  # the first layer is skipped, too
