"""jax.checkpoint: what is computed again, and that results are the same."""

import functools

import jax
import jax.numpy as jnp
import pytest
from cases import Case
from support import assert_follows_scan

import prnn_jax

SAVE_NAMED = jax.checkpoint_policies.save_only_these_names(prnn_jax.SAVED)
POLICIES = {
    "no checkpoint": (lambda f: f, 1),
    "default": (jax.checkpoint, 2),
    "saved by name": (functools.partial(jax.checkpoint, policy=SAVE_NAMED), 1),
    "another name": (
        functools.partial(
            jax.checkpoint,
            policy=jax.checkpoint_policies.save_only_these_names("not ours"),
        ),
        2,
    ),
    "everything": (
        functools.partial(
            jax.checkpoint, policy=jax.checkpoint_policies.everything_saveable
        ),
        1,
    ),
}


def gradient(case: Case, wrap, implementation, arrays):
    @wrap
    def layer(arrays):
        # Another function before and after, so that there is something to save or not.
        y, state = case.run(arrays | {"x": jnp.sin(arrays["x"])}, implementation)
        return jnp.sum(jnp.sin(y)) + sum(jnp.sum(s * s) for s in state)

    # The value too: without it, the first run would not be needed at all.
    return jax.value_and_grad(layer)(arrays)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("cell", ["lstm", "gru", "gru_reset_before", "rnn_relu"])
def test_forward_runs_as_often_as_the_policy_says(cell, policy):
    case = Case(cell, 4, (2,), 9, 3, state=True)
    wrap, forward_calls = POLICIES[policy]
    run = jax.jit(functools.partial(gradient, case, wrap, None))
    # As JAX hands it to XLA, which for the CPU merges equal calls again.
    text = run.lower(case.inputs()).as_text()
    assert text.count("custom_call @prnn_forward") == forward_calls
    assert text.count("custom_call @prnn_backward") == 1


@pytest.mark.parametrize("policy", ["default", "saved by name"])
@pytest.mark.parametrize("cell", ["lstm", "gru_reset_before"])
def test_gradients_are_the_same(cell, policy):
    case = Case(cell, 4, (2,), 9, 3, state=True)
    wrap, _ = POLICIES[policy]
    assert_follows_scan(lambda *args: gradient(case, wrap, *args)[1], case.inputs())


def test_policy_saves_y_and_the_saved_values_only():
    case = Case("lstm", 4, (2,), 9, 3, state=True)
    arrays = {name: jnp.asarray(value) for name, value in case.inputs().items()}

    def saved_shapes(wrap):
        @wrap
        def layer(arrays):
            return case.run(arrays, "native")[0]

        _, vjp = jax.vjp(layer, arrays)
        shapes = [leaf.shape for leaf in jax.tree.leaves(vjp)]
        return [shape for shape in shapes if len(shape) == 4]  # sequences

    # y, and per unit and step i, f, g, o, c.
    wrap, _ = POLICIES["saved by name"]
    assert sorted(saved_shapes(wrap)) == [(2, 4, 1, 9), (2, 4, 1, 45)]
    assert saved_shapes(jax.checkpoint) == []
