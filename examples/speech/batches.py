"""Padded batches of few distinct shapes: each shape is one compilation."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from .dataset import Utterance


class Batch(NamedTuple):
    """Rows that only fill up the batch have no frames, no labels and the row -1."""

    features: np.ndarray  # [batch, time, mel_bins], 0 past the end
    frames: np.ndarray  # [batch]
    labels: np.ndarray  # [batch, label]
    label_lengths: np.ndarray  # [batch]
    rows: np.ndarray  # [batch], index of the utterance


class Shapes(NamedTuple):
    """The padded sizes: `frames` ascending, one per bucket."""

    frames: tuple[int, ...]
    labels: int


def choose_shapes(utterances: Sequence[Utterance], buckets: int) -> Shapes:
    """The bucket sizes, in multiples of 16 frames, that pad these utterances least."""
    frames = np.array([max(utterance.lengths) for utterance in utterances])
    labels = max(len(utterance.labels) for utterance in utterances)
    sizes, counts = np.unique(round_up(frames, 16), return_counts=True)
    below = np.concatenate([[0], np.cumsum(counts)])
    # cost[n]: frames of all utterances up to the n-th size, in the best buckets so far;
    # each round allows one bucket more, from the m-th size to the n-th.
    cost = np.concatenate([[0], below[1:] * sizes])
    edges: list[list[int]] = [[], *([int(size)] for size in sizes)]
    for _ in range(buckets - 1):
        more = [cost[:n] + (below[n] - below[:n]) * sizes[n - 1] for n in _from(sizes)]
        best = [int(np.argmin(of_n)) for of_n in more]
        edges = [[], *(edges[m] + [int(sizes[n])] for n, m in enumerate(best))]
        cost = np.array([0, *(of_n.min() for of_n in more)])
    return Shapes(tuple(edges[-1]), int(round_up(labels, 8)))


def plan_batches(
    utterances: Sequence[Utterance],
    shapes: Shapes,
    batch_size: int,
    rng: np.random.Generator | None = None,
) -> list[tuple[np.ndarray, int]]:
    """Which rows come together, and padded to how many frames.

    Every utterance once; with an `rng` in random order, else by length.
    """
    frames = np.array([max(utterance.lengths) for utterance in utterances])
    if frames.max() > shapes.frames[-1]:
        raise ValueError(
            f"an utterance of {frames.max()} frames is longer than the largest "
            f"bucket of {shapes.frames[-1]}"
        )
    order = np.argsort(frames, kind="stable")
    if rng is not None:
        order = rng.permutation(len(utterances))
    bucket = np.searchsorted(shapes.frames, frames)
    groups = []
    for index, bucket_frames in enumerate(shapes.frames):
        rows = order[bucket[order] == index]
        for start in range(0, len(rows), batch_size):
            groups.append((rows[start : start + batch_size], bucket_frames))
    if rng is not None:
        rng.shuffle(groups)
    return groups


def make_batches(
    utterances: Sequence[Utterance], shapes: Shapes, batch_size: int
) -> Iterator[Batch]:
    """Every utterance once, by length."""
    for rows, frames in plan_batches(utterances, shapes, batch_size):
        yield pad(utterances, rows, Shapes((frames,), shapes.labels), batch_size)


def pad(
    utterances: Sequence[Utterance],
    rows: np.ndarray,
    shape: Shapes,
    batch_size: int,
    versions: np.ndarray | None = None,
) -> Batch:
    """These utterances as a batch of one shape.

    versions: which one of each of all utterances; as they are, if not given.
    """
    mel_bins = utterances[0].features.shape[1]
    batch = Batch(
        features=np.zeros((batch_size, shape.frames[-1], mel_bins), np.float32),
        frames=np.zeros(batch_size, np.int32),
        labels=np.zeros((batch_size, shape.labels), np.int32),
        label_lengths=np.zeros(batch_size, np.int32),
        rows=np.full(batch_size, -1, np.int32),
    )
    for i, row in enumerate(rows):
        utterance = utterances[row]
        batch.rows[i] = row
        features = utterance.features
        if versions is not None:
            features = utterance.versions[versions[row]]
        batch.frames[i] = len(features)
        batch.features[i, : batch.frames[i]] = features
        batch.label_lengths[i] = len(utterance.labels)
        batch.labels[i, : batch.label_lengths[i]] = utterance.labels
    return batch


def _from(sizes: np.ndarray) -> range:
    return range(1, len(sizes) + 1)


def round_up(value, multiple: int):
    """The next multiple."""
    return -(-value // multiple) * multiple
