"""Activations of the caller's choice: the engine's against the scan in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import assert_follows_scan

import prnn_jax
from prnn_jax import Activation

ALL = [
    *("sigmoid", "tanh", "relu", "hard_sigmoid", "hard_tanh", "linear", "softsign"),
    *("softplus", "elu", "leaky_relu"),
    Activation("hard_sigmoid", 0.2, 0.5),
    Activation("elu", 0.3),
    Activation("leaky_relu", 0.25),
    Activation("affine", 0.5, -0.25),
    Activation("scaled_tanh", 1.5, 0.75),
    Activation("clipped_relu", 0.75),
]
#: The same by NumPy.
NUMPY = {
    "sigmoid": lambda a: 1 / (1 + np.exp(-a)),
    "tanh": np.tanh,
    "relu": lambda a: np.maximum(a, 0),
    "hard_sigmoid": lambda a, alpha=1 / 6, beta=0.5: np.clip(alpha * a + beta, 0, 1),
    "hard_tanh": lambda a: np.clip(a, -1, 1),
    "linear": lambda a: a,
    "softsign": lambda a: a / (1 + np.abs(a)),
    "softplus": lambda a: np.log1p(np.exp(-np.abs(a))) + np.maximum(a, 0),
    "elu": lambda a, alpha=1.0: np.where(a < 0, alpha * np.expm1(a), a),
    "leaky_relu": lambda a, alpha=0.01: np.where(a < 0, alpha * a, a),
    "affine": lambda a, alpha, beta: alpha * a + beta,
    "scaled_tanh": lambda a, alpha, beta: alpha * np.tanh(beta * a),
    "clipped_relu": lambda a, alpha: np.clip(a, 0, alpha),
}
# Zero itself, where the derivative jumps, both ends of what is flat, and far out.
POINTS = np.array([0.0, 0.3, -0.3, 2.5, -2.5, 3, -3, 1, -1, 40, -40, 1e4, -1e4, 1e-6])


def of_points(activation, points: np.ndarray, implementation: str | None) -> jax.Array:
    """An activation of numbers: a step of an RNN that has nothing else."""
    hidden = len(points)
    zeros = np.zeros((hidden, hidden), points.dtype)
    y, _ = prnn_jax.recurrence(
        "rnn",
        points[None],
        zeros,
        activation=activation,
        implementation=implementation,
    )
    return y[0]


@pytest.mark.parametrize("activation", ALL, ids=str)
def test_of_numbers(activation):
    name, *numbers = activation if isinstance(activation, tuple) else (activation,)
    numbers = [n for n in numbers if n is not None]
    ours = of_points(activation, POINTS.astype(np.float32), "native")
    with np.errstate(over="ignore"):
        exact = NUMPY[name](POINTS, *numbers)
    # Of functions right to 3 units in the last place, in float32.
    np.testing.assert_allclose(ours, exact, rtol=4e-7, atol=1e-9)


@pytest.mark.parametrize("activation", ALL, ids=str)
def test_derivative_of_numbers(activation):
    points = POINTS.astype(np.float32)

    def gradient(implementation):
        run = functools.partial(of_points, activation, implementation=implementation)
        return jax.grad(lambda points: run(points).sum())(points)

    # From the output alone, where 1 - y or 1 - y² has an error of a rounding of 1.
    np.testing.assert_allclose(
        gradient("native"), gradient("scan"), rtol=4e-7, atol=2.5e-7
    )


BOUNDED = "tanh", "softsign", "hard_sigmoid", "scaled_tanh"


def name_of(activation) -> str:
    return activation if isinstance(activation, str) else activation.name


@pytest.mark.parametrize("activation", [ALL[1], ALL[2], *ALL[6:13], ALL[14]], ids=str)
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_training(cell, activation):
    gate = activation if name_of(activation) in BOUNDED else "sigmoid"
    options = {"activation": activation, "gate_activation": gate}
    if cell == "lstm":
        options["activation"] = (activation, "tanh")
    params = prnn_jax.init(cell, jax.random.key(0), 4, 19)
    x = jax.random.normal(jax.random.key(1), (3, 5, 4))

    def run(implementation, arrays):
        def loss(params, x):
            function = getattr(prnn_jax, cell)
            y, _ = function(x, params, implementation=implementation, **options)
            return (jnp.sin(y)).sum(), y

        return jax.value_and_grad(loss, (0, 1), has_aux=True)(*arrays)

    assert_follows_scan(run, jax.tree.map(np.asarray, (params, x)))


def test_explain_names_the_engine():
    plan = prnn_jax.explain(
        "lstm", batch=1, time=3, hidden_size=8, gate_activation="hard_sigmoid"
    )
    assert plan.engine == "native"


def test_a_layer_that_prepared_its_weights():
    params = prnn_jax.init("lstm", jax.random.key(0), 4, 19)
    x = jax.random.normal(jax.random.key(1), (1, 2, 4))
    prepared = prnn_jax.prepare("lstm", params, batch=1, time=2)
    options = {"gate_activation": "hard_sigmoid"}
    ours, _ = prnn_jax.lstm(x, prepared, **options)
    np.testing.assert_array_equal(ours, prnn_jax.lstm(x, params, **options)[0])


BAD = {
    "unknown": ("lstm", {"activation": "gelu"}, "lstm: activation must be one of"),
    "a function": ("gru", {"activation": jnp.tanh}, "gru: activation must be one of"),
    "a number too many": (
        "lstm",
        {"gate_activation": Activation("sigmoid", 2.0)},
        "gate_activation 'sigmoid' has no alpha, got 2.0",
    ),
    "negative": (
        "rnn",
        {"activation": Activation("elu", -1.0)},
        "activation's alpha must be positive, got -1.0",
    ),
    "not finite": (
        "lstm",
        {"gate_activation": Activation("hard_sigmoid", 0.2, float("nan"))},
        "gate_activation's beta must be finite, got nan",
    ),
    "two of a GRU": (
        "gru",
        {"activation": ("tanh", "relu")},
        "activation must be one, for the gru",
    ),
    "three": (
        "lstm",
        {"activation": ("tanh", "relu", "relu")},
        "activation must be one, or two, .* got 3",
    ),
}


@pytest.mark.parametrize(("cell", "options", "message"), BAD.values(), ids=BAD)
def test_bad_options_are_named(cell, options, message):
    params = prnn_jax.init(cell, jax.random.key(0), 4, 8)
    with pytest.raises(ValueError, match=message):
        getattr(prnn_jax, cell)(jnp.zeros((2, 4)), params, **options)


@pytest.mark.parametrize("cell", ["slstm", "rnn"])
def test_gates_that_have_none_to_choose(cell):
    params = prnn_jax.init(cell, jax.random.key(0), 4, 8)
    with pytest.raises(ValueError, match=r"gate_activation .*'sigmoid'"):
        prnn_jax.stack(
            cell, jnp.zeros((2, 4)), [params], gate_activation="hard_sigmoid"
        )
