"""The folder of a run: one configuration, one process that trains."""

import fcntl
import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from flax import nnx

from . import checkpoint, files, programs, settings, subwords
from .config import RunConfig
from .dataset import Utterance
from .errors import SpeechError
from .model import Recogniser
from .report import Report
from .subwords import VOCABULARY, expect_vocabulary
from .text import Alphabet, Vocabulary
from .train import TrainState

CONFIG = "config.toml"
METRICS = "metrics.jsonl"
CORPUS = "corpus.json"
#: Settings that change nothing of what is learnt.
_FREE = (
    *("data.test:", "data.cache:", "data.programs:", "train.save_every:"),
    *("decode.beam:", "decode.arpa:", "decode.lm_weight:", "decode.word_score:"),
)


@contextmanager
def training_in(run: Path, config: RunConfig) -> Iterator[None]:
    """Keeps the folder for this process and this configuration."""
    if run.exists() and not run.is_dir():
        raise SpeechError(f"{run}: is a file; expected a folder for --run")
    try:
        str(run).encode()
    except UnicodeEncodeError:
        raise SpeechError(f"{run}: expected a name in UTF-8 for --run") from None
    run.mkdir(parents=True, exist_ok=True)
    with (run / "lock").open("w") as lock:  # the system frees it, however we end
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SpeechError(
                f"{run}: another process trains there; give --run another folder"
            ) from None
        file = run / CONFIG
        if not _has_checkpoints(run):
            # Of settings with which nothing was learnt there is nothing to keep.
            (run / VOCABULARY).unlink(missing_ok=True)
            settings.save(config, file)
        else:
            all_different = settings.differences(settings.load(file), config)
            if different := [d for d in all_different if not d.startswith(_FREE)]:
                raise SpeechError(
                    f"{run}: was begun with other settings ({'; '.join(different)}): "
                    f"give the same to go on (--config {file}), or --run another folder"
                )
            if all_different:
                settings.save(config, file)
        yield


def expect_corpus(run: Path, utterances: Sequence[Utterance]) -> None:
    """Refuses to go on with other utterances than a run was begun with.

    Steps and epochs are counted by these: the training would be another one.
    """
    digest = hashlib.sha256()
    for utterance in utterances:
        digest.update(f"{utterance.lengths} {utterance.text}\n".encode())
    now = {"utterances": len(utterances), "sha256": digest.hexdigest()}
    file = run / CORPUS
    if not file.exists() or not _has_checkpoints(run):
        files.write(file, json.dumps(now) + "\n")
        return
    if (then := json.loads(file.read_text())) != now:
        raise SpeechError(
            f"{run}: was begun with {then['utterances']} other training utterances, "
            f"and now there are {len(utterances)}: to go on, put data.train back as it "
            "was; to train with these, give --run another folder"
        )


def _has_checkpoints(run: Path) -> bool:
    """Complete ones: orbax gives what it is writing a longer name."""
    return any(f.name.isdecimal() for f in (run / "checkpoints").glob("*"))


def make_vocabulary(run: Path, config: RunConfig, report: Report) -> Vocabulary:
    """The vocabulary of a run that begins, or goes on: made once, and kept."""
    file, options = run / VOCABULARY, config.model
    if options.vocabulary != "characters" and not file.exists():
        if options.vocabulary_file:
            made = subwords.read(options.vocabulary_file, options)
        else:
            made = subwords.train(subwords.texts_of(config), options)
            pieces = " ".join(subwords.shown(made.pieces[:8]))
            report.say(f"{file}: {options.vocabulary_size} labels: {pieces} ...")
        files.write(file, made.model)
    return vocabulary(run, config)


def vocabulary(run: Path, config: RunConfig) -> Vocabulary:
    """That of a run."""
    if config.model.vocabulary == "characters":
        return Alphabet(config.model.characters)
    return subwords.read(run / VOCABULARY, config.model)


def load(run: Path) -> tuple[RunConfig, Recogniser]:
    """The configuration of a run and its best model."""
    if not (run / CONFIG).exists():
        raise SpeechError(f"{run}: no run is there; `train --run {run}` makes one")
    config = settings.load(run / CONFIG)
    programs.keep(config.data.programs)
    recogniser = Recogniser(
        config.model, config.features, nnx.Rngs(0), vocabulary(run, config)
    )
    graph, params, statistics = nnx.split(recogniser, nnx.Param, ...)
    like = TrainState(None, params, statistics, None)
    with checkpoint.opened(run, read_only=True) as checkpoints:
        state = checkpoints.restore(checkpoints.best, like)
    recogniser = nnx.merge(graph, state.average, state.statistics)
    expect_vocabulary(recogniser)
    return config, recogniser
