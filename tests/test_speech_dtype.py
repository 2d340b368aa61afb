"""The speech example in bfloat16: the same speech; parameters and losses in float32."""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import export as jax_export
from speech_support import noise, streamed

from examples.speech import batches, corpora, dataset, export, in_torch, stream
from examples.speech import train as training
from examples.speech.config import AugmentConfig, ModelConfig, RunConfig
from examples.speech.features import log_mel
from examples.speech.model import Recogniser
from examples.speech.optimizer import make_optimizer
from examples.speech.text import Alphabet

CTC = ModelConfig(layers=1, hidden_size=24, channels=16, lookahead=3, dropout=0.0)
TRANSDUCER = replace(
    CTC,
    kind="transducer",
    predictor_size=16,
    predictor_projection=8,
    predictor_layer_norm=True,
    joint_size=12,
)
BOTH = replace(CTC, direction="both", cell="gru")
MODELS = {"ctc": CTC, "transducer": TRANSDUCER, "both directions": BOTH}
#: What rounding once to bfloat16 is off by at most, relative.
ROUNDING = 2.0**-9


def config_of(model: ModelConfig, **options) -> RunConfig:
    augment = AugmentConfig(bins_shifted=0, bins_hidden=0, frames_hidden=0)
    return RunConfig(model=replace(model, **options), augment=augment)


def recogniser_of(config: RunConfig) -> Recogniser:
    """Of equal weights, whatever it computes with, and what looks ahead has some."""
    recogniser = Recogniser(config.model, config.features, nnx.Rngs(0))
    weights = recogniser.lookahead.weights
    weights[...] = jax.random.normal(jax.random.key(0), weights.shape)
    return recogniser


def utterances() -> list[dataset.Utterance]:
    random, alphabet = np.random.default_rng(0), Alphabet(CTC.characters)
    return [
        dataset.Utterance(
            corpora.Clip(Path("none.ogg"), text),
            text,
            random.standard_normal((60 + 10 * n, 40)).astype(np.float32),
            alphabet.encode(text),
        )
        for n, text in enumerate(["one two", "three", "four five"])
    ]


def relative_error(actual, expected) -> float:
    """Of all leaves together."""
    pairs = list(zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True))
    off = sum(np.sum((np.float64(a) - np.float64(e)) ** 2) for a, e in pairs)
    return float(np.sqrt(off / sum(np.sum(np.float64(e) ** 2) for _, e in pairs)))


@pytest.mark.parametrize("kind", MODELS)
def test_loss_and_gradients_are_as_exact_as_those_of_the_scan(kind):
    said = utterances()
    batch = next(batches.make_batches(said, batches.choose_shapes(said, 1), 4))

    def of(**options):
        config = config_of(MODELS[kind], **options)
        graph, params, statistics = nnx.split(recogniser_of(config), nnx.Param, ...)
        loss = training.make_loss(config, graph)
        return jax.jit(jax.value_and_grad(loss))(
            params, statistics, batch, jax.random.key(0)
        )

    exact = of(implementation="scan")
    actual, scan = of(dtype="bfloat16"), of(dtype="bfloat16", implementation="scan")
    assert {a.dtype for a in jax.tree.leaves(actual)} == {jnp.dtype("float32")}
    for n in range(2):
        error = relative_error(actual[n], exact[n])
        bound = relative_error(scan[n], exact[n])
        assert 0 < error <= 1.5 * bound + ROUNDING
        assert bound < 0.1


def test_what_is_trained_stays_float32():
    said = utterances()
    config = config_of(CTC, dtype="bfloat16")
    slow = replace(config.train, learning_rate=1e-4)
    config = replace(config, train=slow)
    recogniser = recogniser_of(config)
    recogniser.normalise.measure([u.features for u in said])
    trained = training.prepare(config, make_optimizer(config.train, 10), recogniser)
    batch = next(batches.make_batches(said, batches.choose_shapes(said, 1), 4))
    state, loss = trained.step(trained.state, batch, 1)
    assert np.isfinite(loss)
    floats = [x for x in jax.tree.leaves(state) if jnp.issubdtype(x.dtype, jnp.inexact)]
    assert {x.dtype for x in floats} == {jnp.dtype("float32")}
    # Less than a bfloat16 knows: with parameters of it nothing would be learnt.
    state, _ = trained.step(state, batch, 2)
    kernel = trained.state.params["out"]["kernel"][...]
    moved = np.abs(state.params["out"]["kernel"][...] - kernel)
    assert 0 < moved.max() < ROUNDING * np.abs(kernel).max()


@pytest.mark.parametrize("weights", ["plain", "prepared", "int8"])
def test_a_stream_gives_what_the_whole_recording_gives(weights):
    config = config_of(CTC, dtype="bfloat16")
    recogniser = recogniser_of(config)
    features = np.random.default_rng(0).standard_normal((75, 40)).astype(np.float32)
    model = stream.chunk_model(config, recogniser, 80, weights)
    actual = streamed(model, features)
    whole = np.asarray(recogniser(features[None], np.array([75]))[0])
    float32 = recogniser_of(config_of(CTC))
    exact = np.asarray(float32(features[None], np.array([75]))[0])
    assert 0 < relative_error(actual, exact) <= 1.5 * relative_error(whole, exact)


def test_the_states_of_a_stream_are_float32():
    """A forget gate near 1 changes c by less than a bfloat16 knows of."""
    config = config_of(CTC, dtype="bfloat16")
    model = stream.chunk_model(config, recogniser_of(config), 80)
    state, _ = model.advance(model.start, np.zeros((8, 40), np.float32), 8)
    assert {x.dtype for x in jax.tree.leaves(state.recurrent)} == {jnp.dtype("float32")}
    assert state.waiting.dtype == jnp.bfloat16
    same = jax.tree.map(lambda a, b: a.dtype == b.dtype, state, model.start)
    assert all(jax.tree.leaves(same))


def test_an_exported_program_computes_with_it_too(tmp_path):
    config = config_of(CTC, dtype="bfloat16")
    recogniser = recogniser_of(config)
    program = export.write(config, recogniser, tmp_path).read_bytes()
    exported = jax_export.deserialize(bytearray(program))
    assert "bf16" in exported.mlir_module()
    samples = noise(0.8)
    logits, _ = exported.call(samples[None], np.array([len(samples)], np.int32))
    features = log_mel(samples, config.features)
    frames = np.array([len(features)])
    whole, exact = (
        recogniser_of(c)(features[None], frames) for c in (config, config_of(CTC))
    )
    assert logits.dtype == jnp.float32
    actual = logits[:, : whole.shape[1]]
    assert relative_error(actual, exact) <= 1.5 * relative_error(whole, exact)


def test_pytorch_is_not_compared_with_in_bfloat16():
    config = config_of(CTC, dtype="bfloat16")
    assert in_torch.network(config.model, recogniser_of(config)) is None
