"""Weights in the speech example: of 8 bits, and those that another run has trained."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from flax import nnx
from speech_support import streamed

from examples.speech import stream
from examples.speech.config import ModelConfig, RunConfig
from examples.speech.errors import SpeechError
from examples.speech.model import Recogniser
from examples.speech.start import begin_with
from examples.speech.weights import rounded


@pytest.fixture(scope="module")
def small() -> tuple[RunConfig, Recogniser]:
    config = RunConfig(model=ModelConfig(layers=2, hidden_size=24, channels=16))
    return config, Recogniser(config.model, config.features, nnx.Rngs(0))


def test_a_stream_of_8_bits_gives_what_the_rounded_network_gives(small):
    config, recogniser = small
    model = stream.chunk_model(config, recogniser, 80, "int8")
    features = np.random.default_rng(0).standard_normal((75, 40)).astype(np.float32)
    whole, rounded_whole = (
        each(features[None], np.array([75]))[0]
        for each in (recogniser, rounded(config.model, recogniser))
    )
    streamed_in_8_bits = streamed(model, features)
    # What weights of 8 bits are multiplied by is rounded to 16.
    np.testing.assert_allclose(streamed_in_8_bits, rounded_whole, atol=2e-3)
    assert np.abs(streamed_in_8_bits - whole).max() > 1e-2


@pytest.mark.parametrize("direction", ["forward", "both"])
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_rounding_leaves_the_network_itself_alone(cell, direction):
    model = ModelConfig(cell=cell, direction=direction, hidden_size=24, channels=16)
    config = RunConfig(model=model)
    recogniser = Recogniser(config.model, config.features, nnx.Rngs(0))
    before = jax.tree.map(np.asarray, nnx.state(recogniser))
    copy = rounded(config.model, recogniser)
    jax.tree.map(np.testing.assert_array_equal, before, nnx.state(recogniser))
    (ours, theirs) = (each.recurrent.layers[0].w_hh[...] for each in (copy, recogniser))
    assert 0 < np.abs(ours - theirs).max() <= np.abs(theirs).max() / 254 * 1.01
    assert len(np.unique(ours[..., 0])) <= 255 * (1 + (direction == "both"))


@pytest.mark.parametrize(
    ("changed", "anew"),
    [
        ({"dropout": 0.0}, []),
        ({"characters": " абв"}, ["out"]),
        ({"characters": "abcdefghijklmnopqrstuvwxyz' "}, ["out"]),  # as many
        ({"kind": "transducer"}, ["out", "transducer"]),
    ],
)
def test_weights_of_a_run_for_other_labels(changed, anew, small):
    earlier, trained = small
    trained.normalise.mean[...] = np.arange(40.0)
    config = replace(earlier, model=replace(earlier.model, **changed))
    begun = Recogniser(config.model, config.features, nnx.Rngs(1))
    before = jax.tree.map(np.array, nnx.state(begun.out))
    assert begin_with(config, begun, earlier, trained) == anew
    for name in ("normalise", "front_end", "recurrent", "lookahead", "norm"):
        states = (nnx.state(getattr(each, name)) for each in (begun, trained))
        jax.tree.map(np.testing.assert_array_equal, *states)
    expected = before if anew else nnx.state(trained.out)
    jax.tree.map(np.testing.assert_array_equal, nnx.state(begun.out), expected)


def test_weights_of_another_network(small):
    earlier, trained = small
    config = replace(earlier, model=replace(earlier.model, layers=3))
    begun = Recogniser(config.model, config.features, nnx.Rngs(1))
    with pytest.raises(SpeechError, match=r"network \(model.layers: 2 and 3\): give"):
        begin_with(config, begun, earlier, trained)
