"""The optimizer: what optax has, put together."""

import optax

from .config import TrainConfig


def learning_rate(config: TrainConfig, updates: int) -> optax.Schedule:
    """From 0 to the peak over the warm-up, then falling to a fiftieth or not at all."""
    peak, last = config.learning_rate, 0.02 * config.learning_rate
    warmup = int(config.warmup * updates)
    rest = max(1, updates - warmup)
    after = {
        "cosine": optax.cosine_decay_schedule(peak, rest, alpha=0.02),
        "linear": optax.linear_schedule(peak, last, rest),
        "constant": optax.constant_schedule(peak),
    }[config.schedule]
    if warmup == 0:
        return after
    rising = optax.linear_schedule(0.0, peak, warmup)
    return optax.join_schedules([rising, after], [warmup])


def make_optimizer(config: TrainConfig, steps: int) -> optax.GradientTransformation:
    """AdamW with clipped gradients, over so many batches."""
    optimizer = optax.chain(
        optax.clip_by_global_norm(config.clip_norm),
        optax.adamw(
            learning_rate(config, steps // config.accumulate),
            weight_decay=config.weight_decay,
        ),
    )
    if config.accumulate == 1:
        return optimizer
    return optax.MultiSteps(optimizer, config.accumulate).gradient_transformation()
