"""Trains three policies side by side and compares them.

The first has a GRU by the engine that prnn_jax takes on this machine, the second the
same GRU by lax.scan, the third a feed-forward core with as many weights.
"""

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import replace

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

import prnn_jax

from .ppo import QUICK, Config, Metrics, start, train

UPDATES_PER_LINE = 5
SCAN, FEED_FORWARD = "GRU, lax.scan", "feed-forward"


class Run:
    """The training of one policy, in pieces of `UPDATES_PER_LINE`."""

    def __init__(self, config: Config, seed: int):
        self.config = config
        self._runner = start(config, seed)
        self._program = train.lower(config, self._runner, UPDATES_PER_LINE).compile()
        self._metrics: list[Metrics] = []
        self._seconds: list[float] = []

    def advance(self) -> None:
        """Trains one piece, and takes the time."""
        begin = time.perf_counter()
        self._runner, metrics = jax.block_until_ready(self._program(self._runner))
        self._seconds.append(time.perf_counter() - begin)
        self._metrics.append(jax.tree.map(np.asarray, metrics))

    @property
    def reward_per_episode(self) -> float:
        """In the last piece."""
        last = self._metrics[-1]
        return float(last.reward.sum() / max(1, last.episodes.sum()))

    @property
    def success_rate(self) -> float:
        """In the last piece: the share of episodes that ended in the right arm."""
        last = self._metrics[-1]
        return float(last.successes.sum() / max(1, last.episodes.sum()))

    @property
    def steps_per_second(self) -> float:
        """Rollouts and gradient steps together; the median over the pieces."""
        steps = UPDATES_PER_LINE * self.config.steps_per_update
        return steps / float(np.median(self._seconds))

    @property
    def counts(self) -> np.ndarray:
        """How many episodes ended, and how many of them well: `[updates, 2]`."""
        pieces = [np.stack([m.episodes, m.successes], 1) for m in self._metrics]
        return np.concatenate(pieces)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the comparison that the arguments ask for."""
    options = _parser().parse_args(arguments)
    config = QUICK if options.quick else Config()
    if options.hidden:
        config = _with_network(config, hidden=options.hidden)
    steps = options.steps or (60_000 if options.quick else 250_000)
    console, begin = Console(), time.perf_counter()
    runs = compare(console, policies(config), options.seed, steps)
    console.print(table(runs))
    gru, scan = list(runs.values())[:2]
    console.print(
        f"The GRUs' episodes are the same in {_same_updates(gru, scan)} of "
        f"{len(gru.counts)} updates, counted from the first.\n"
        f"{time.perf_counter() - begin:.0f} s in all, compiling included",
        highlight=False,
    )


def policies(config: Config) -> dict[str, Config]:
    """What is compared, by name."""
    plan = prnn_jax.explain(
        "gru",
        batch=config.mazes // config.minibatches,
        time=config.window,
        hidden_size=config.network.hidden,
        training=True,
    )
    return {
        f"GRU, {plan.engine}": config,
        SCAN: _with_network(config, implementation="scan"),
        FEED_FORWARD: _with_network(config, memory=False),
    }


def compare(
    console: Console, configs: dict[str, Config], seed: int, steps: int
) -> dict[str, Run]:
    """Trains all in turn, so that a busy moment of the machine hits them alike."""
    console.print("compiling")
    runs = {name: Run(config, seed) for name, config in configs.items()}
    console.print("reward per episode\n" + _line("steps", list(runs)))
    first = next(iter(configs.values()))
    steps_per_line = UPDATES_PER_LINE * first.steps_per_update
    for line in range(1, math.ceil(steps / steps_per_line) + 1):
        for run in runs.values():
            run.advance()
        rewards = [f"{run.reward_per_episode:+.3f}" for run in runs.values()]
        console.print(_line(f"{line * steps_per_line}", rewards), highlight=False)
    return runs


def table(runs: dict[str, Run]) -> Table:
    """How each ended, and how fast it was."""
    result = Table(
        "policy", "reward per episode", "right arm", "steps/s", "to lax.scan"
    )
    scan = runs.get(SCAN)
    for name, run in runs.items():
        speed = run.steps_per_second
        result.add_row(
            name,
            f"{run.reward_per_episode:+.3f}",
            f"{100 * run.success_rate:.1f} %",
            f"{speed:.0f}",
            f"{speed / scan.steps_per_second:.2f}×" if scan else "",
        )
    return result


def _same_updates(one: Run, other: Run) -> int:
    """How many updates pass before a first difference."""
    same = (one.counts == other.counts).all(1)
    return int(np.logical_and.accumulate(same).sum())


def _with_network(config: Config, **changes) -> Config:
    return replace(config, network=replace(config.network, **changes))


def _line(first: str, others: Sequence[str]) -> str:
    return f"{first:>8}" + "".join(f"{other:>15}" for other in others)


def _at_least_1(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.recurrent_ppo", description=__doc__
    )
    parser.add_argument("--steps", type=_at_least_1, help="in the maze, of each policy")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hidden", type=_at_least_1, help="units of the network")
    parser.add_argument("--quick", action="store_true", help="a small maze and network")
    return parser


if __name__ == "__main__":
    main()
