"""The network: an embedding, a memory, and two heads for policy and value."""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

import prnn_jax

from .environment import ACTIONS, OBSERVATION_SIZE


class Dense(NamedTuple):
    """Parameters of x w + b."""

    w: Array  # [inputs, outputs]
    b: Array  # [outputs]

    def __call__(self, x: Array) -> Array:
        """All but the last axis of x are batch."""
        return x @ self.w + self.b


class Params(NamedTuple):
    """All that is learnt."""

    embed: Dense
    core: prnn_jax.Params | tuple[Dense, Dense]
    policy: Dense
    value: Dense


class Output(NamedTuple):
    """What the network says about each step."""

    logits: Array  # [time, batch, ACTIONS] of the policy
    value: Array  # [time, batch] expected discounted sum of rewards from here on


@dataclass(frozen=True)
class Network:
    r"""x = tanh(embed(o)), y = core(x), logits = policy(y), V = value(y).

    Attributes:
      hidden: how wide x and y are.
      memory: with it the core is a GRU; without it, two dense layers that have as many
        weights, :math:`y = \tanh(W_2 \tanh(W_1 x))`.
      implementation: of the GRU, see `prnn_jax.gru`.
    """

    hidden: int = 64
    memory: bool = True
    implementation: Literal["native", "scan"] | None = None

    def init(self, key: Array) -> Params:
        """Orthogonal weights, biases of zero (Andrychowicz et al. 2021)."""
        embed, core_in, core_out, policy, value = jax.random.split(key, 5)
        wide = 3 * self.hidden
        if self.memory:
            core = prnn_jax.Params(
                _orthogonal(core_in, self.hidden, wide, math.sqrt(3)),
                _orthogonal(core_out, self.hidden, wide, math.sqrt(3)),
                jnp.zeros(wide),
                jnp.zeros(wide),
            )
        else:
            core = (
                _dense(core_in, self.hidden, wide, math.sqrt(3)),
                _dense(core_out, wide, self.hidden, math.sqrt(3)),
            )
        return Params(
            _dense(embed, OBSERVATION_SIZE, self.hidden, math.sqrt(2)),
            core,
            _dense(policy, self.hidden, ACTIONS, 0.01),  # nearly uniform at first
            _dense(value, self.hidden, 1, 1.0),
        )

    def initial_state(self, batch: int) -> Array:
        """`[batch, hidden]`."""
        return jnp.zeros([batch, self.hidden])

    def __call__(
        self, params: Params, observation: Array, state: Array, resets: Array
    ) -> tuple[Output, Array]:
        """A window of time, or one step of it.

        Args:
          params: of `init`.
          observation: `[time, batch, OBSERVATION_SIZE]`.
          state: `[batch, hidden]`, of the core before the window.
          resets: `[time, batch]`, where an episode begins: the state is zero before
            that step, and no gradient crosses.

        Returns:
          The output of every step and the state after the last.
        """
        x = jnp.tanh(params.embed(observation))
        if self.memory:
            y, state = prnn_jax.gru(
                x,
                params.core,
                state,
                resets=resets,
                time_major=True,
                implementation=self.implementation,
            )
        else:
            first, second = params.core
            y = jnp.tanh(second(jnp.tanh(first(x))))
        return Output(params.policy(y), params.value(y)[..., 0]), state


def _orthogonal(key: Array, inputs: int, outputs: int, gain: float) -> Array:
    return jax.nn.initializers.orthogonal(gain)(key, (inputs, outputs))


def _dense(key: Array, inputs: int, outputs: int, gain: float) -> Dense:
    return Dense(_orthogonal(key, inputs, outputs, gain), jnp.zeros(outputs))
