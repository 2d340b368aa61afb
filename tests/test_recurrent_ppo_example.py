"""The recurrent PPO example: its maze, estimates, gradient, a quick training."""

import functools
import io
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from examples.recurrent_ppo import __main__ as command
from examples.recurrent_ppo import ppo
from examples.recurrent_ppo.environment import FORWARD, LEFT, RIGHT, Maze, State

CORRIDOR, JUNCTION = 2, 3
MAZE = Maze(shortest=2, longest=4)
STEP = jax.jit(MAZE.step)
CONFIG = ppo.QUICK
QUICKLY = {"xla_backend_optimization_level": 0}  # compiled, that is


# The maze


def _state(arm: int, ahead: int, *, is_first: bool = False) -> State:
    return State(jnp.array([arm]), jnp.array([ahead]), jnp.array([is_first]))


def _step(state: State, action: int):
    """The next state, what is seen there, the reward, whether the episode ended."""
    state, outcome = STEP(jax.random.key(0), state, jnp.array([action]))
    seen = MAZE.observe(state)
    assert seen.sum() == 1
    return state, int(seen.argmax()), float(outcome.reward[0]), bool(outcome.done[0])


@pytest.mark.parametrize("arm", [LEFT, RIGHT])
def test_an_episode(arm):
    state = _state(arm, 2, is_first=True)
    assert MAZE.observe(state).argmax() == arm - LEFT
    state, seen, reward, done = _step(state, FORWARD)
    assert (seen, reward, done) == (CORRIDOR, 0, False)
    state, seen, reward, done = _step(state, FORWARD)
    assert (seen, reward, done) == (JUNCTION, 0, False)
    assert not state.is_first[0]
    for turn in (LEFT, RIGHT):
        following, seen, reward, done = _step(state, turn)
        assert (reward, done) == (1 if turn == arm else -1, True)
        assert following.is_first[0]
        assert seen == following.arm[0] - LEFT
        assert MAZE.shortest <= following.ahead[0] <= MAZE.longest


@pytest.mark.parametrize(
    ("ahead", "action", "where"),
    [(1, LEFT, CORRIDOR), (1, RIGHT, CORRIDOR), (0, FORWARD, JUNCTION)],
)
def test_a_bump_costs_and_stays(ahead, action, where):
    state, seen, reward, done = _step(_state(LEFT, ahead), action)
    assert (seen, done, int(state.ahead[0])) == (where, False, ahead)
    assert reward == pytest.approx(MAZE.bump)


def test_episodes_begin_with_all_arms_and_lengths():
    state = MAZE.begin(jax.random.key(0), 3000)
    assert state.is_first.all()
    lengths, counts = np.unique(state.ahead, return_counts=True)
    assert lengths.tolist() == [2, 3, 4]
    assert counts.min() > 900
    assert abs(float((state.arm == LEFT).mean()) - 0.5) < 0.03


def test_after_the_first_step_nothing_tells_the_arm():
    # In mazes that differ in the arm only, the same actions show the same.
    lengths = jnp.array([2, 3, 4] * 2)
    state = State(jnp.array([LEFT] * 3 + [RIGHT] * 3), lengths, jnp.ones(6, bool))
    for action in (FORWARD, LEFT, FORWARD, RIGHT, FORWARD, FORWARD):
        actions = jnp.where(state.ahead == 0, FORWARD, action)  # no episode ends
        state, outcome = STEP(jax.random.key(0), state, actions)
        seen = MAZE.observe(state)
        np.testing.assert_array_equal(seen[:3], seen[3:])
        np.testing.assert_array_equal(outcome.reward[:3], outcome.reward[3:])
    assert (state.ahead == 0).all()


# Estimates, gradient, rollout


def test_advantages_are_the_sum_of_discounted_errors():
    rng = np.random.default_rng(0)
    shape = time, mazes = 12, 3
    reward, value = rng.normal(size=(2, *shape)).astype(np.float32)
    done, last_value = rng.random(shape) < 0.2, np.ones(mazes, np.float32)
    nothing = np.zeros(shape)
    window = ppo.Window(nothing, nothing, nothing, nothing, value, reward, done)

    after = np.concatenate([value[1:], last_value[None]])
    delta = reward + CONFIG.discount * np.where(done, 0, after) - value
    expected = np.zeros(shape)
    for row in range(mazes):
        for t in range(time):
            for k in range(t, time):
                weight = (CONFIG.discount * CONFIG.trace) ** (k - t)
                expected[t, row] += weight * delta[k, row]
                if done[k, row]:
                    break
    assert done.any(0).all()
    actual = ppo.advantages(CONFIG, window, last_value)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@functools.cache
def _experience():
    """Of a policy that is not uniform: its parameters, a state, the window from there.

    And the state after the window.
    """
    runner = ppo.start(CONFIG, 0)
    params = jax.tree.map(np.asarray, runner.params)
    params = params._replace(policy=params.policy._replace(w=300 * params.policy.w))
    runner = runner._replace(params=params)
    rollout = jax.jit(functools.partial(ppo.rollout, CONFIG), compiler_options=QUICKLY)
    runner, _, _ = rollout(runner, jax.random.key(1))
    after, window, _ = rollout(runner, jax.random.key(2))
    state_0, window, state_n = jax.tree.map(
        np.asarray, (runner.state, window, after.state)
    )
    assert np.abs(state_0).max() > 0.1
    assert window.resets[1:].any(0).mean() > 0.5
    return params, state_0, window, state_n


def test_a_window_with_resets_repeats_the_rollout():
    params, state_0, window, state_n = _experience()

    @jax.jit
    def at_once(resets):
        output, state = CONFIG.network(params, window.observation, state_0, resets)
        return ppo.log_prob(output.logits, window.action), output.value, state

    rolled_out = window.log_prob, window.value, state_n
    for once, stepped in zip(at_once(window.resets), rolled_out, strict=True):
        # Not exact: XLA may add in another order for a product over all steps.
        np.testing.assert_allclose(once, stepped, rtol=1e-5, atol=1e-5)
    without, *_ = at_once(np.zeros_like(window.resets))
    assert np.abs(without - window.log_prob).max() > 0.01


def test_gradient_of_the_loss_is_that_of_the_scan():
    params, state_0, window, _ = _experience()
    rng = np.random.default_rng(0)
    # As after some gradient steps: the ratio of probabilities is not 1.
    moved = jax.tree.map(lambda a: a + 0.05 * rng.normal(size=a.shape), params)
    moved = jax.tree.map(np.float32, moved)
    advantage = rng.normal(size=window.reward.shape).astype(np.float32)

    @functools.partial(jax.jit, static_argnums=0)
    def gradient(implementation, params):
        network = replace(CONFIG.network, implementation=implementation)
        rows = ppo.Batch(window, state_0, advantage)
        return jax.grad(ppo.loss, argnums=1)(
            replace(CONFIG, network=network), params, rows
        )

    native, scan = gradient("native", moved), gradient("scan", moved)
    for ours, expected in zip(
        jax.tree.leaves(native), jax.tree.leaves(scan), strict=True
    ):
        # The weights' gradients are sums of 1024 addends of either sign: one product
        # over all steps rounds them in another order than the scan's sum of sums.
        # Both were within 1.3e-6 of the largest value from the scan in float64.
        largest = np.abs(expected).max()
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-5 * largest)


# Training


def test_training_finds_what_a_policy_without_memory_cannot():
    # Its return is 0 at best. Ours was 0.99 or more at this point with every one of 30
    # seeds; see also test_after_the_first_step_nothing_tells_the_arm.
    console = Console(file=io.StringIO())
    runs = command.compare(console, {"GRU": CONFIG}, seed=0, steps=50_000)
    (run,) = runs.values()
    assert run.counts[-5:, 0].sum() > 500
    assert run.reward_per_episode > 0.8
    assert run.success_rate > 0.9
    console.print(command.table(runs))
    assert f"{run.reward_per_episode:+.3f}" in console.file.getvalue()


@pytest.mark.parametrize("option", ["--steps", "--hidden"])
def test_numbers_are_at_least_1(option, capsys):
    with pytest.raises(SystemExit):
        command.main([option, "0"])
    assert f"argument {option}: must be at least 1, got 0" in capsys.readouterr().err
