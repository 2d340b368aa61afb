"""A T-maze (Bakker 2001): the first observation tells where to turn at the end.

A corridor of random length ends in a junction with a left and a right arm. Which of
them holds the reward is seen in the first step of an episode only; from then on all
episodes look alike. So a policy without memory finds the right arm in half of the
episodes, whatever it does, and its return is 0 at best.

Many mazes run side by side: every array has the leading axis `batch`. Where an episode
ends, the next one begins at once.

Bakker 2001, Reinforcement learning with long short-term memory, NIPS 14.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

FORWARD, LEFT, RIGHT = 0, 1, 2
ACTIONS = 3
OBSERVATION_SIZE = 4  # cue left, cue right, corridor, junction: one of them is 1


class State(NamedTuple):
    """Where the mazes are."""

    arm: Array  # [batch] the arm with the reward, LEFT or RIGHT
    ahead: Array  # [batch] steps forward to the junction; 0: there
    is_first: Array  # [batch] whether this is the first step of an episode


class Outcome(NamedTuple):
    """What an action brought."""

    reward: Array  # [batch]
    done: Array  # [batch] whether it ended the episode


@dataclass(frozen=True)
class Maze:
    """The rules. Going forward at the junction or turning before it is a bump."""

    shortest: int = 5  # of the corridor, in steps; at least 1
    longest: int = 15
    bump: float = -0.1  # its reward; the agent stays where it is

    def begin(self, key: Array, batch: int) -> State:
        """New episodes."""
        lengths = self.longest - self.shortest + 1
        drawn = jax.random.randint(key, [batch], 0, 2 * lengths)  # of all there are
        is_first = jnp.ones([batch], bool)
        return State(LEFT + drawn % 2, self.shortest + drawn // 2, is_first)

    def observe(self, state: State) -> Array:
        """What the agent sees: `[batch, OBSERVATION_SIZE]`, a one-hot vector."""
        here = jnp.where(state.ahead > 0, 2, 3)
        seen = jnp.where(state.is_first, state.arm - LEFT, here)
        return jax.nn.one_hot(seen, OBSERVATION_SIZE)

    def step(self, key: Array, state: State, action: Array) -> tuple[State, Outcome]:
        """One action `[batch]` in each maze; `key` is for the episodes that begin."""
        at_junction = state.ahead == 0
        turns = action != FORWARD
        done = at_junction & turns
        reward = jnp.where(at_junction == turns, 0.0, self.bump)
        reward = jnp.where(done, jnp.where(action == state.arm, 1.0, -1.0), reward)

        ahead = jnp.where(at_junction | turns, state.ahead, state.ahead - 1)
        on = State(state.arm, ahead, jnp.zeros_like(done))
        fresh = self.begin(key, action.shape[0])
        following = jax.tree.map(lambda a, b: jnp.where(done, a, b), fresh, on)
        return following, Outcome(reward, done)
