"""Padded batches of few distinct shapes: each shape is one compilation."""

from collections.abc import Iterator, Sequence
from itertools import combinations
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
    frames = np.array([len(utterance.features) for utterance in utterances])
    longest = _round_up(frames.max(), 16)
    padded = np.arange(_round_up(frames.min(), 16), longest, 16)

    def total(edges):
        sizes = np.array([*edges, longest])
        return sizes[np.searchsorted(sizes, frames)].sum()

    shorter = min(combinations(padded, min(buckets - 1, len(padded))), key=total)
    labels = max(len(utterance.labels) for utterance in utterances)
    return Shapes((*map(int, shorter), longest), _round_up(labels, 8))


def make_batches(
    utterances: Sequence[Utterance],
    shapes: Shapes,
    batch_size: int,
    rng: np.random.Generator | None = None,
) -> Iterator[Batch]:
    """Every utterance once; with an `rng` in random order, else by length."""
    frames = np.array([len(utterance.features) for utterance in utterances])
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
    for rows, bucket_frames in groups:
        yield _pad(utterances, rows, batch_size, bucket_frames, shapes.labels)


def augment(batch: Batch, rng: np.random.Generator) -> Batch:
    """The same batch, as said by other voices and partly hidden.

    Each row is shifted by up to 2 mel bins, roughly what a longer or shorter vocal
    tract does, and loses a band of mel bins and a span of frames (Park et al. 2019).
    """
    features = np.zeros_like(batch.features)
    _, time, mel_bins = features.shape
    for row, source in zip(features, batch.features, strict=True):
        bins = np.arange(mel_bins) + rng.integers(-2, 3)
        row[:] = source[:, bins.clip(0, mel_bins - 1)]
        low, width = rng.integers(mel_bins), rng.integers(6)
        row[:, low : low + width] = 0
        start, span = rng.integers(time), rng.integers(9)
        row[start : start + span] = 0
    return batch._replace(features=features)


def _pad(utterances, rows, batch_size, frames, labels) -> Batch:
    mel_bins = utterances[0].features.shape[1]
    batch = Batch(
        features=np.zeros((batch_size, frames, mel_bins), np.float32),
        frames=np.zeros(batch_size, np.int32),
        labels=np.zeros((batch_size, labels), np.int32),
        label_lengths=np.zeros(batch_size, np.int32),
        rows=np.full(batch_size, -1, np.int32),
    )
    for i, row in enumerate(rows):
        utterance = utterances[row]
        batch.rows[i] = row
        batch.frames[i] = len(utterance.features)
        batch.features[i, : batch.frames[i]] = utterance.features
        batch.label_lengths[i] = len(utterance.labels)
        batch.labels[i, : batch.label_lengths[i]] = utterance.labels
    return batch


def _round_up(value: int, multiple: int) -> int:
    return -(-int(value) // multiple) * multiple
