"""The transducer's loss: against all alignments, one by one, and a plain lattice."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support import assert_as_accurate, float64, quick_jit

from examples.speech import lattice
from examples.speech.text import BLANK


def random_case(
    time: int, labels: int, *, batch: int = 4, vocabulary: int = 5, scale: float = 1.0
) -> tuple[dict, dict]:
    """Weights and features; and labels with lengths, the first row's all there is."""
    random = np.random.default_rng(time + 100 * labels)

    def normal(*shape: int) -> np.ndarray:
        return scale * random.standard_normal(shape).astype(np.float32)

    size = 6
    arrays = {
        "heard": normal(batch, time, size),
        "written": normal(batch, labels + 1, size),
        "weights": normal(size, vocabulary),
    }
    sizes = {
        "labels": random.integers(1, vocabulary, (batch, labels), np.int32),
        "frames": random.integers(1, time + 1, batch).astype(np.int32),
        "label_lengths": random.integers(0, labels + 1, batch).astype(np.int32),
    }
    sizes["frames"][0], sizes["label_lengths"][0] = time, labels
    return arrays, sizes


def joint(weights, heard, written):
    return jnp.tanh(heard + written) @ weights


def ours(arrays: dict, sizes: dict) -> jax.Array:
    return lattice.loss(
        lambda heard, written: joint(arrays["weights"], heard, written),
        arrays["heard"],
        arrays["written"],
        sizes["labels"],
        sizes["frames"],
        sizes["label_lengths"],
    )


def naive(arrays: dict, sizes: dict) -> jax.Array:
    """All logits at once, then node by node."""
    logits = joint(
        arrays["weights"], arrays["heard"][:, :, None], arrays["written"][:, None]
    )
    log_p = jax.nn.log_softmax(logits)
    batch, _, nodes, _ = log_p.shape
    nowhere = jnp.full(batch, -jnp.inf, log_p.dtype)
    labels = jnp.pad(sizes["labels"], ((0, 0), (0, 1)))[:, None, :, None]
    blank = log_p[..., BLANK].transpose(1, 2, 0)  # [time, label + 1, batch]
    label = jnp.take_along_axis(log_p, labels, -1)[..., 0].transpose(1, 2, 0)

    def of_frame(before, moves):  # before: ways to each node that end with a blank
        blank, label = moves

        def of_node(way, moves):  # way: to this node, with a label
            before, blank, label = moves
            here = jnp.logaddexp(before, way)
            return here + label, here + blank

        _, after = lax.scan(of_node, nowhere, (before, blank, label))
        return after, after

    start = jnp.full((nodes, batch), -jnp.inf, log_p.dtype).at[0].set(0.0)
    _, after = lax.scan(of_frame, start, (blank, label))
    return -after[sizes["frames"] - 1, sizes["label_lengths"], np.arange(batch)]


def one_by_one(p: np.ndarray, labels: np.ndarray, frames: int) -> float:
    """-log of the sum over alignments: in which frames the labels are written."""
    total = 0.0
    for when in itertools.combinations_with_replacement(range(frames), len(labels)):
        product = 1.0
        for u, (frame, label) in enumerate(zip(when, labels, strict=True)):
            product *= p[frame, u, label]
        for frame in range(frames):
            product *= p[frame, sum(w <= frame for w in when), BLANK]
        total += product
    return -math.log(total)


@pytest.mark.parametrize(("time", "labels"), [(1, 1), (1, 4), (3, 0), (4, 3), (6, 2)])
def test_the_loss_is_that_of_all_alignments(time, labels):
    arrays, sizes = random_case(time, labels)
    wide = {name: array.astype(np.float64) for name, array in arrays.items()}
    hidden = np.tanh(wide["heard"][:, :, None] + wide["written"][:, None])
    odds = np.exp(hidden @ wide["weights"])
    p = odds / odds.sum(-1, keepdims=True)
    exact = [
        one_by_one(p[row], sizes["labels"][row, :count], frames)
        for row, (count, frames) in enumerate(
            zip(sizes["label_lengths"], sizes["frames"], strict=True)
        )
    ]
    with float64():
        np.testing.assert_allclose(naive(wide, sizes), exact, rtol=1e-12)
        np.testing.assert_allclose(ours(wide, sizes), exact, rtol=1e-12)


# The last: likely paths are few, and log-probabilities of -60 beside them.
@pytest.mark.parametrize(
    ("time", "labels", "scale"),
    [
        (1, 1, 1.0),
        (5, 0, 1.0),
        (lattice.FRAMES, 3, 1.0),
        (lattice.FRAMES + 1, 12, 1.0),
        (19, 7, 1.0),
        (17, 6, 5.0),
    ],
)
def test_loss_and_gradients_are_as_accurate_as_those_of_a_plain_lattice(
    time, labels, scale
):
    arrays, sizes = random_case(time, labels, scale=scale)
    per_row = np.arange(
        1, 5, dtype=np.float32
    )  # so that no row's gradient is another's

    def both(of):
        def weighted(arrays):
            losses = of(arrays, sizes)
            return (losses * per_row).sum(), losses

        @quick_jit
        def run(arrays):
            (_, losses), gradients = jax.value_and_grad(weighted, has_aux=True)(arrays)
            return {"losses": losses, **gradients}

        return lambda arrays: jax.tree.map(np.asarray, run(arrays))

    with float64():
        exact = both(naive)({k: v.astype(np.float64) for k, v in arrays.items()})
    actual, plain = both(ours)(arrays), both(naive)(arrays)
    assert_as_accurate(actual, plain, exact)


def test_what_padding_holds_has_no_effect():
    arrays, sizes = random_case(11, 5)
    sizes["frames"][1], sizes["label_lengths"][1] = 6, 2

    def loss(arrays, labels):
        return ours(arrays, {**sizes, "labels": labels})[1]

    run = jax.jit(jax.value_and_grad(loss))
    expected, gradients = run(arrays, sizes["labels"])
    other = {name: array.copy() for name, array in arrays.items()}
    other["heard"][1, 6:], other["written"][1, 3:] = 1e3, -1e3
    labels = sizes["labels"].copy()
    labels[1, 2:] = BLANK
    found, of_other = run(other, labels)
    assert found == expected
    for name, gradient in gradients.items():
        np.testing.assert_array_equal(of_other[name], gradient)
    assert not gradients["heard"][1, 6:].any()
    assert not gradients["written"][1, 3:].any()


def test_rows_without_frames():
    arrays, sizes = random_case(3, 2, batch=3)
    sizes["frames"][:], sizes["label_lengths"][:] = (0, 0, 3), (0, 1, 2)

    def loss(arrays):
        losses = ours(arrays, sizes)
        return losses.sum(), losses

    gradients, losses = jax.grad(loss, has_aux=True)(arrays)
    assert losses[0] == 0
    assert losses[1] == np.inf
    assert 0 < losses[2] < np.inf
    assert not gradients["heard"][:2].any()
    assert np.isfinite(gradients["weights"]).all()
    assert gradients["heard"][2].any()


def test_logits_of_all_nodes_are_never_there_at_once():
    """Of 32 times as many frames, the lattice grows, not what the logits take."""
    batch, labels, vocabulary, size = 4, 20, 64, 32

    def kept_and_used(time: int) -> tuple[int, int]:
        arrays = {
            "heard": jnp.zeros((batch, time, size)),
            "written": jnp.zeros((batch, labels + 1, size)),
            "weights": jnp.zeros((size, vocabulary)),
        }
        sizes = {
            "labels": jnp.ones((batch, labels), jnp.int32),
            "frames": jnp.full(batch, time),
            "label_lengths": jnp.full(batch, labels),
        }

        def step(arrays):
            return jax.value_and_grad(lambda a: ours(a, sizes).sum())(arrays)

        analysis = jax.jit(step).lower(arrays).compile().memory_analysis()
        kept = jax.tree.leaves(jax.vjp(lambda a: ours(a, sizes).sum(), arrays)[1])
        return sum(leaf.nbytes for leaf in kept), analysis.temp_size_in_bytes

    (few_kept, few_used), (kept, used) = kept_and_used(8), kept_and_used(256)
    per_node = 4 * batch * (256 - 8) * (labels + 1)
    # A share of each node; what was heard, which is 32 times as much for 21 nodes.
    assert kept - few_kept < 1.1 * per_node * (1 + 32 / 21)
    # Logits alone would be 64 times as much, what enters the tanh 32 times.
    assert used - few_used < 6 * per_node
