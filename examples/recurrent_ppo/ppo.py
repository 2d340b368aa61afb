"""Recurrent proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347).

An update collects a window of steps from all mazes, one step after the other, and then
takes some gradient steps on it, where the recurrent layer sees the whole window in one
call. That the two agree needs two things of the recurrent layer: the state before the
window, which is kept with it, and `resets` where episodes begin inside the window.

T is `config.window`, B is `config.mazes`; arrays are `[T, B, ...]`.
"""

import functools
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

from .agent import Network, Params
from .environment import Maze, State


@dataclass(frozen=True)
class Config:
    """Every number of a run but its seed and its length."""

    network: Network = field(default_factory=Network)
    maze: Maze = field(default_factory=Maze)
    mazes: int = 64  # side by side
    window: int = 64  # steps of each maze between two updates
    epochs: int = 4  # how often an update goes through its window
    minibatches: int = 4  # gradient steps of an epoch; each has mazes/minibatches rows
    learning_rate: float = 1e-3
    max_norm: float = 0.5  # of the gradient
    discount: float = 0.99
    trace: float = 0.95  # λ of the advantage estimate
    clip: float = 0.2  # ε, how far a probability may move, as a ratio
    value_weight: float = 0.5
    entropy_weight: float = 0.01

    @property
    def steps_per_update(self) -> int:
        """Steps in the environment."""
        return self.mazes * self.window

    @property
    def optimizer(self) -> optax.GradientTransformation:
        """Adam on clipped gradients."""
        optimizer = optax.chain(
            optax.clip_by_global_norm(self.max_norm),
            optax.adam(self.learning_rate, eps=1e-5),
        )
        return optax.flatten(optimizer)  # as one vector: less to compile


#: Learnt in seconds: short corridors, a small network.
QUICK = Config(network=Network(hidden=32), maze=Maze(2, 5), mazes=32, window=32)


class Runner(NamedTuple):
    """All that changes from one update to the next."""

    params: Params
    moments: Any  # of the optimizer
    maze: State
    state: Array  # [B, hidden] of the network
    key: Array


class Window(NamedTuple):
    """What a rollout saw and did."""

    observation: Array  # [T, B, OBSERVATION_SIZE]
    resets: Array  # [T, B] whether an episode begins with this step
    action: Array  # [T, B]
    log_prob: Array  # [T, B] of the action, when it was drawn
    value: Array  # [T, B]
    reward: Array  # [T, B]
    done: Array  # [T, B] whether the episode ended with this step


class Batch(NamedTuple):
    """What the loss is computed of: rows of a window."""

    window: Window
    state_0: Array  # [B, hidden] of the network before the window
    advantage: Array  # [T, B]


class Metrics(NamedTuple):
    """Sums over a window."""

    episodes: Array  # that ended
    successes: Array  # of them, in the right arm
    reward: Array


@functools.partial(jax.jit, static_argnums=0)
def start(config: Config, seed: int) -> Runner:
    """A fresh network and fresh mazes."""
    params_key, maze_key, key = jax.random.split(jax.random.key(seed), 3)
    params = config.network.init(params_key)
    return Runner(
        params,
        config.optimizer.init(params),
        config.maze.begin(maze_key, config.mazes),
        config.network.initial_state(config.mazes),
        key,
    )


@functools.partial(jax.jit, static_argnums=(0, 2))
def train(config: Config, runner: Runner, updates: int) -> tuple[Runner, Metrics]:
    """So many updates, as one program. The metrics are `[updates]`."""
    return lax.scan(lambda r, _: update(config, r), runner, length=updates)


def update(config: Config, runner: Runner) -> tuple[Runner, Metrics]:
    """A rollout, and the gradient steps on what it saw."""
    rollout_key, learn_key, key = jax.random.split(runner.key, 3)
    state_0 = runner.state
    runner, window, last_value = rollout(config, runner, rollout_key)
    batch = Batch(window, state_0, advantages(config, window, last_value))
    params, moments = _learn(config, runner.params, runner.moments, batch, learn_key)
    metrics = Metrics(
        window.done.sum(), (window.reward == 1).sum(), window.reward.sum()
    )
    return runner._replace(params=params, moments=moments, key=key), metrics


def rollout(config: Config, runner: Runner, key: Array) -> tuple[Runner, Window, Array]:
    """T steps of all mazes: calls of the network with a window of one.

    Returns:
      The runner after them, what was seen, and the value `[B]` of what comes next.
    """
    network, maze = config.network, config.maze

    def act(carry, key):
        state, places = carry
        action_key, maze_key = jax.random.split(key)
        observation, resets = maze.observe(places), places.is_first
        output, state = network(runner.params, observation[None], state, resets[None])
        logits, value = output.logits[0], output.value[0]
        action = jax.random.categorical(action_key, logits)
        places, outcome = maze.step(maze_key, places, action)
        seen = Window(
            observation, resets, action, log_prob(logits, action), value, *outcome
        )
        return (state, places), seen

    carry = runner.state, runner.maze
    (state, places), window = lax.scan(act, carry, jax.random.split(key, config.window))
    # A look at the next step; the next rollout takes it again, with other parameters.
    ahead, _ = network(
        runner.params, maze.observe(places)[None], state, places.is_first[None]
    )
    return runner._replace(state=state, maze=places), window, ahead.value[0]


def advantages(config: Config, window: Window, last_value: Array) -> Array:
    r"""Generalised advantage estimates (Schulman et al. 2016, arXiv:1506.02438).

    .. math::
      A_t = δ_t + γ λ (1 - d_t) A_{t+1} \qquad
      δ_t = r_t + γ (1 - d_t) V_{t+1} - V_t
    """

    def back(carry, step):
        advantage, value_after = carry
        reward, done, value = step
        discount = config.discount * (1 - done)
        delta = reward + discount * value_after - value
        advantage = delta + config.trace * discount * advantage
        return (advantage, value), advantage

    _, advantage = lax.scan(
        back,
        (jnp.zeros_like(last_value), last_value),
        (window.reward, window.done.astype(last_value.dtype), window.value),
        reverse=True,
    )
    return advantage


def loss(config: Config, params: Params, batch: Batch) -> Array:
    r"""The clipped surrogate, the value's squared error and the policy's entropy.

    .. math::
      L = -\overline{\min(ρ A, \mathrm{clip}(ρ, 1 - ε, 1 + ε) A)}
          + c_V \tfrac{1}{2} \overline{(V - V_{old} - A)^2} - c_S \overline{S}

    with :math:`ρ = π(a) / π_{old}(a)`. Many divide A by its standard deviation. Here A
    is of the order of 1 while there is something to learn, and noise afterwards, which
    that would blow up: some seeds lost for a while what they had learnt.
    """
    window, advantage = batch.window, batch.advantage
    output, _ = config.network(params, window.observation, batch.state_0, window.resets)
    ratio = jnp.exp(log_prob(output.logits, window.action) - window.log_prob)
    clipped = jnp.clip(ratio, 1 - config.clip, 1 + config.clip)
    policy_loss = -jnp.minimum(ratio * advantage, clipped * advantage).mean()
    value_loss = jnp.square(output.value - window.value - advantage).mean() / 2
    return (
        policy_loss
        + config.value_weight * value_loss
        - config.entropy_weight * _entropy(output.logits).mean()
    )


def log_prob(logits: Array, action: Array) -> Array:
    """Of an action `[...]` under logits `[..., ACTIONS]`."""
    log_probs = jax.nn.log_softmax(logits)
    return jnp.take_along_axis(log_probs, action[..., None], -1)[..., 0]


def _entropy(logits: Array) -> Array:
    log_probs = jax.nn.log_softmax(logits)
    return -(jnp.exp(log_probs) * log_probs).sum(-1)


def _learn(config: Config, params: Params, moments, batch: Batch, key: Array):
    """All gradient steps on one window; the new parameters and moments."""

    def descend(carry, rows):
        params, moments = carry
        part = Batch(
            jax.tree.map(lambda a: a[:, rows], batch.window),
            batch.state_0[rows],
            batch.advantage[:, rows],
        )
        gradient = jax.grad(functools.partial(loss, config))(params, part)
        updates, moments = config.optimizer.update(gradient, moments, params)
        return (optax.apply_updates(params, updates), moments), None

    # A minibatch is some of the mazes over all of the time: sequences stay whole.
    keys = jax.random.split(key, config.epochs)
    order = jax.vmap(lambda key: jax.random.permutation(key, config.mazes))(keys)
    rows = order.reshape(-1, config.mazes // config.minibatches)
    carry, _ = lax.scan(descend, (params, moments), rows)
    return carry
