"""What a run is trained with and tested on, and what of it cannot be used."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from . import audio, dataset, runs
from .batches import Batch, choose_shapes, make_batches
from .config import RunConfig
from .corpora import Clip
from .dataset import Dataset, Utterance
from .errors import SpeechError
from .features import log_mel
from .report import Report

Split = Literal["train", "dev", "test", "bench"]


def load_split(
    config: RunConfig,
    split: Split,
    report: Report,
    run: Path,
    source: Path | None = None,
    *,
    select: Callable[[Dataset], Dataset] = lambda loaded: loaded,
    speeds: Sequence[float] = (1.0,),
) -> Dataset:
    """What can be used of a corpus; what is left out is said.

    Args:
      config: of the run.
      split: what it is for.
      report: says what is left out.
      run: gets a list of that.
      source: the corpus, if it is not that of the settings.
      select: of what is loaded, what can be used.
      speeds: at which the utterances are wanted.
    """
    of_config = "train" if split == "bench" else split
    source = source or getattr(config.data, of_config)
    vocabulary = runs.vocabulary(run, config)
    loaded = select(
        dataset.load(source, config.data, config.features, vocabulary, speeds)
    )
    skipped = run / f"skipped-{split}.txt"
    report.skipped(source, loaded.skipped, skipped)
    if not loaded.utterances:
        raise SpeechError(f"{source}: nothing is left that can be used, see {skipped}")
    if not any(utterance.text for utterance in loaded.utterances):
        raise SpeechError(f"{source}: all texts are empty, so nothing can be compared")
    report.bandwidth(loaded.utterances[0].clip.audio, config.features)
    return loaded


def of_file(file: Path, config: RunConfig) -> Utterance:
    """A recording without a text; ValueError says what ails."""
    samples = audio.read(file, config.features.sample_rate)
    features = log_mel(samples, config.features)
    if not len(features):
        raise ValueError(f"{len(samples)} samples are too few to hear anything")
    return Utterance(Clip(file, None), "", features, np.zeros(0, np.int32))


def middle_batch(config: RunConfig, report: Report, run: Path) -> Batch:
    """One of utterances of a middling length."""
    utterances = load_split(config, "bench", report, run).utterances
    shapes = choose_shapes(utterances, config.train.buckets)
    batches = list(make_batches(utterances, shapes, config.train.batch_size))
    return batches[len(batches) // 2]  # they are in order of length
