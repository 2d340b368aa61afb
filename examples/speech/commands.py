"""The commands. Each is a function whose arguments are its options."""

import itertools
import json
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
from tyro.conf import Positional, arg

from . import (
    audio,
    files,
    language_model,
    latency,
    ngram,
    programs,
    runs,
    subwords,
)
from . import evaluate as evaluation
from . import export as exporting
from . import stream as streaming
from . import synth as synthesis
from . import train as training
from .batches import Shapes, choose_shapes, round_up
from .checkpoint import opened
from .config import RunConfig
from .devices import Cluster
from .errors import SpeechError
from .features import log_mel
from .memory import activation_bytes, gradient_bytes, loss_bytes
from .metrics import error_rates
from .model import FRAME_STRIDE
from .progress import TrainingProgress
from .report import Report, check_picture, plot_posteriors, plot_stream
from .splits import load_split, middle_batch, of_file
from .start import begin
from .tensorboard import TensorBoard
from .timing import time_steps
from .ways import LANGUAGE_MODEL, Search
from .weights import rounded

Settings = Annotated[RunConfig, arg(name="")]
_BEST = Path("runs/demo")


Searching = Annotated[Search, arg(name="")]


def demo(config: Settings = RunConfig(), run: Path = _BEST) -> None:  # noqa: B008
    """Trains on the digits, tests with and without beam search, streams a recording.

    Args:
        config: settings; --config FILE takes them from a file.
        run: folder for the model and all that is measured.
    """
    start = time.perf_counter()
    train(config, run)
    can_search = config.model.kind == "transducer" or language_model.is_available()
    evaluate(run, search=Search(beam=can_search))
    if not can_search:
        print("no beam search: flashlight-text is not installed")
    bench(run)
    first = load_split(config, "test", Report(), run).utterances[0]
    said = audio.read(first.clip.audio, config.features.sample_rate)
    said = said[: round((first.clip.duration or 0) * config.features.sample_rate)]
    example = run / "example.wav"
    audio.write(example, said, config.features.sample_rate)
    print(f"\nstreaming {example}; said is: {first.text}")
    stream(str(example), run, picture=run / "stream.png")
    print(f"\n{time.perf_counter() - start:.0f} s in all; {run} has pictures and model")


def train(
    config: Settings = RunConfig(),  # noqa: B008
    run: Path = Path("runs/new"),
    tensorboard: bool = False,
    cluster: Annotated[Cluster, arg(name="")] = Cluster(),  # noqa: B008
) -> None:
    """Trains a model, or goes on with it where the training ended.

    Args:
        config: settings; --config FILE takes them from a file.
        run: folder for the model and all that is measured.
        tensorboard: the curves in the run's folder `tensorboard`, too.
        cluster: other processes that train the same model.
    """
    programs.keep(config.data.programs)
    cluster.join()
    report, of_all = Report(), run
    if cluster.process:  # the checkpoints are of all, the rest is of each
        run = run / f"process-{cluster.process}"
    board = TensorBoard(run / "tensorboard") if tensorboard else None
    with runs.training_in(run, config), opened(of_all) as checkpoints:
        vocabulary = runs.make_vocabulary(run, config, report)
        select = partial(training.usable, kind=config.model.kind)
        speeds = config.augment.speeds
        utterances = load_split(
            config, "train", report, run, select=select, speeds=speeds
        ).utterances
        runs.expect_corpus(run, utterances)
        dev = load_split(config, "dev", report, run).utterances
        texts, order = (u.text for u in utterances), config.decode.order
        ngram.write_arpa(texts, order, run / LANGUAGE_MODEL)
        shapes = choose_shapes([*utterances, *dev], config.train.buckets)
        frames = sum(len(utterance.features) for utterance in utterances)
        report.say(
            f"training on {len(utterances)} utterances, "
            f"{frames * config.features.hop_seconds / 60:.0f} minutes, padded to "
            f"{', '.join(map(str, shapes.frames))} frames"
        )
        with TrainingProgress(report, run / runs.METRICS, board) as progress:
            training.train(
                config,
                utterances,
                dev,
                shapes,
                checkpoints,
                progress,
                vocabulary,
                partial(begin, config, report),
            )
        progress.plot(run / "learning.png")


def evaluate(
    run: Path = _BEST,
    corpus: Path | None = None,
    search: Searching = Search(),  # noqa: B008
    int8: bool = False,
) -> None:
    """Tests the best model of a run: error rates by speaker, and some sentences.

    Args:
        run: folder of the run.
        corpus: what to test on; the run's own test set if not given.
        search: beam search, besides the best path.
        int8: with recurrent weights of 8 bits, besides those of the model.
    """
    report = Report()
    config, recogniser = runs.load(run)
    source = corpus or config.data.test
    utterances = load_split(config, "test", report, run, source).utterances
    shapes = choose_shapes(utterances, config.train.buckets)
    ways = {"greedy": evaluation.greedy(config, recogniser.vocabulary)}
    if beam := search.of(config, run):
        ways[f"beam {config.decode.beam}"] = beam
    models = {"": recogniser}
    if int8:
        models |= {", int8": rounded(config.model, recogniser)}
    references, rows = [u.text for u in utterances], []
    for (name, way), (kind, model) in itertools.product(ways.items(), models.items()):
        texts = evaluation.transcribe(config, model, utterances, shapes, way)
        rows.append((name + kind, *error_rates(references, texts)))
    every = max(1, len(utterances) // 5)
    report.say(f"{source}, {rows[-1][0]}:")
    report.speakers(evaluation.by_speaker(utterances, texts))
    report.sentences(utterances[::every], texts[::every])
    for name, characters, of_words in rows:
        report.say(f"{name}: CER {characters}, WER {of_words}")
    if config.model.kind == "ctc":
        shown = max(utterances[:5], key=lambda u: len(u.features))  # not too short
        (logits,) = evaluation.outputs(recogniser, [shown], shapes, 1)
        picture, labels = run / "posteriors.png", recogniser.vocabulary
        try:
            if len(logits):
                plot_posteriors(picture, shown, logits, config, labels)
        except OSError as error:
            report.say(f"{picture}: no picture of it: {error.strerror}")


def transcribe(
    files: Positional[list[Path]],
    run: Path = _BEST,
    search: Searching = Search(),  # noqa: B008
    as_json: Annotated[bool, arg(name="json")] = False,
    int8: bool = False,
) -> None:
    """Writes down what is said in recordings, a line for each.

    Args:
        files: recordings of any format and rate that soundfile reads.
        run: folder of the run.
        search: beam search, instead of the best path.
        as_json: a line of JSON with the words' times in seconds, to some tenths.
        int8: with recurrent weights of 8 bits.
    """
    if not files:
        raise SpeechError("expected the names of recordings")
    config, recogniser = runs.load(run)
    if int8:
        recogniser = rounded(config.model, recogniser)
    way = search.of(config, run) or evaluation.greedy(config, recogniser.vocabulary)
    frame_seconds = FRAME_STRIDE * config.features.hop_seconds
    unread = 0
    for file in files:
        try:
            utterance = of_file(file, config)
        except ValueError as error:
            unread += 1
            print(f"{file}: {error}", file=sys.stderr)
            continue
        # A multiple, so that files of about one length are one compilation.
        shapes = Shapes((round_up(len(utterance.features), 64),), 8)
        (output,) = evaluation.outputs(recogniser, [utterance], shapes, 1, way.search)
        text = way.decode(output)
        if as_json:
            timed = way.decode.words(output, frame_seconds)
            found = {"text": text, "words": [word._asdict() for word in timed]}
            print(json.dumps({"file": str(file), **found}))
        else:
            print(f"{file}: {text}")
    if unread:
        raise SpeechError(f"{unread} of {len(files)} files could not be read")


def stream(
    source: Positional[str],
    run: Path = _BEST,
    chunk_ms: int = 160,
    picture: Path | None = None,
    int8: bool = False,
) -> None:
    """Writes down what is said while it comes in, and how long that takes.

    Args:
        source: a recording, or - for raw samples from a pipe: 16 bits, little-endian,
            one channel, at the model's sample rate.
        run: folder of a run with a model that runs forward only.
        chunk_ms: how much sound is processed at a time; a multiple of 20.
        picture: file for a picture of the text as it grows.
        int8: with recurrent weights of 8 bits.
    """
    if picture:
        check_picture(picture)
        picture.parent.mkdir(parents=True, exist_ok=True)
    config, recogniser = runs.load(run)
    rate = config.features.sample_rate
    weights = "int8" if int8 else "prepared"
    model = streaming.chunk_model(config, recogniser, chunk_ms, weights)
    listener = streaming.Stream(config, model)
    streaming.Stream(config, model).finish()  # compiles
    if source == "-":
        pieces = streaming.from_pipe(sys.stdin.buffer, rate, chunk_ms)
    else:
        pieces = streaming.from_file(Path(source), rate, chunk_ms)
    lasted, text = 0.0, ""
    heard, seconds, added = [], [], []
    for piece in pieces:
        lasted += len(piece) / rate
        start = time.perf_counter()
        more = listener.feed(piece)
        seconds.append(time.perf_counter() - start)
        if more:
            text += more
            added.append((lasted, more))
            print(f"{lasted:6.2f} s  {text}", flush=True)
        if picture:
            heard.append(piece)
    more = listener.finish()
    text += more
    added.append((lasted, more))
    print(f"   end    {text}")
    if lasted:
        p50, p99 = 1e3 * np.percentile(seconds, [50, 99])
        print(
            f"{lasted:.2f} s of sound in {sum(seconds):.3f} s: real-time factor "
            f"{sum(seconds) / lasted:.4f}; a chunk of {chunk_ms} ms takes {p50:.2f} ms "
            f"(p50), {p99:.2f} ms (p99)"
        )
    if picture and lasted:
        plot_stream(picture, log_mel(np.concatenate(heard), config.features), added)


def bench(
    run: Path = _BEST,
    chunks_ms: tuple[int, ...] = (40, 80, 160, 320),
    steps: int = 15,
    chunks: int = 300,
) -> None:
    """Times training and streaming against lax.scan and PyTorch.

    Args:
        run: folder of the run.
        chunks_ms: sizes of a stream's chunks.
        steps: training steps by each way.
        chunks: of each size by each way.
    """
    if min(steps, chunks) < 1:
        raise SpeechError(
            f"expected --steps and --chunks above 0, got {steps} and {chunks}"
        )
    report = Report()
    config, recogniser = runs.load(run)
    if config.model.direction == "forward":
        for chunk_ms in chunks_ms:
            streaming.frames_of(config, chunk_ms)
    batch = middle_batch(config, report, run)
    size, frames, _ = batch.features.shape
    report.say(f"training on {size} utterances of at most {frames} frames:")
    report.steps(time_steps(config, batch, steps))
    kept = activation_bytes(config, batch)
    listed = ", ".join(f"{n / 1024:.0f} KiB by {name}" for name, n in kept.items())
    report.say(f"the recurrent layers keep of each utterance: {listed}")
    if config.model.kind == "transducer":
        for frames, size in loss_bytes(config, batch).items():
            report.say(
                f"the loss needs {size / 2**20:.1f} MiB, with {frames} frames at a time"
            )
    if config.model.direction == "forward":
        report.latencies(latency.measure(config, recogniser, chunks_ms, chunks))


def export(run: Path = _BEST, out: Path | None = None) -> None:
    """Writes the best model as one program for jax.export, for CPU and CUDA.

    Args:
        run: folder of the run.
        out: folder for it; the run's if not given.
    """
    config, recogniser = runs.load(run)
    print(exporting.write(config, recogniser, out or run))


def vocabulary(
    out: Positional[Path],
    config: Settings = RunConfig(),  # noqa: B008
) -> None:
    """Makes subwords of the training texts; `train` makes its own where none are given.

    Args:
        out: file for them, to be read by SentencePiece, or as model.vocabulary_file.
        config: settings; model.vocabulary and model.vocabulary_size say which.
    """
    if config.model.vocabulary == "characters":
        raise SpeechError("expected --model.vocabulary of bpe or unigram")
    texts = subwords.texts_of(config)
    made = subwords.train(texts, config.model)
    out.parent.mkdir(parents=True, exist_ok=True)
    files.write(out, made.model)
    labels = sum(len(made.encode(text)) for text in texts)
    of_each, characters = labels / len(texts), sum(map(len, texts)) / len(texts)
    print(
        f"{out}: {len(made.pieces) + 1} labels; a text of {characters:.1f} characters "
        f"has {of_each:.1f}. As in:"
    )
    for text in texts[:3]:
        pieces = (made.pieces[label - 1] for label in made.encode(text))
        print(f"  {' '.join(subwords.shown(pieces))}")


def memory(
    config: Settings = RunConfig(),  # noqa: B008
    batch_size: int = 8,
    frames: int = 1000,
) -> None:
    """Says what loss and gradient need for an utterance; nothing is trained.

    Args:
        config: settings; --config FILE takes them from a file.
        batch_size: utterances.
        frames: of features in each; a second has a hundred.
    """
    if batch_size < 2 or frames < 1:
        raise SpeechError(
            f"expected --batch-size of 2 at least and --frames of 1, got {batch_size} "
            f"and {frames}"
        )
    seconds = frames * config.features.hop_seconds
    print(f"loss and gradient need for each utterance of {seconds:g} s:")
    for name, size in gradient_bytes(config, batch_size, frames).items():
        print(f"  {size / 2**20:8.2f} MiB by {name}")


def synth(
    out: Path,
    config: Annotated[synthesis.SynthConfig, arg(name="")] = synthesis.SynthConfig(),  # noqa: B008
    workers: int = os.cpu_count() or 1,
) -> None:
    """Makes a corpus of spoken digits; needs espeak-ng and scipy.

    Args:
        out: folder for it.
        config: what to make.
        workers: processes.
    """
    synthesis.synthesise(out, config, workers)
