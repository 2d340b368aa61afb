"""Command line: demo, train, evaluate, synth. Run it as `python -m examples.speech`."""

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path

from . import checkpoint
from .batches import choose_shapes, make_batches
from .config import ModelConfig, RunConfig, TrainConfig
from .dataset import DIGITS, SPLITS, load
from .evaluate import Transcriber, error_rate, error_rate_by_speaker
from .model import Recogniser
from .report import Report, TrainingProgress, plot_posteriors
from .synth import SynthConfig, synthesise
from .timing import time_steps
from .train import count_steps, train, usable


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command that the arguments name."""
    options = _parser().parse_args(arguments)
    options.command(options)


def _demo(options: argparse.Namespace) -> None:
    start = time.perf_counter()
    config, report = _config(options), _open_run(options.run)
    recogniser = _train(config, options.corpus, options.run, report)
    _test(config, recogniser, options.corpus, "test", options.run, report)
    _time(config, options.corpus, report)
    seconds = time.perf_counter() - start
    report.say(f"{seconds:.0f} s in all; pictures and metrics are in {options.run}")


def _train_only(options: argparse.Namespace) -> None:
    _train(_config(options), options.corpus, options.run, _open_run(options.run))


def _evaluate(options: argparse.Namespace) -> None:
    config, recogniser = checkpoint.load(options.run)
    report = Report()
    _test(config, recogniser, options.corpus, options.split, options.run, report)


def _synth(options: argparse.Namespace) -> None:
    config = SynthConfig(options.train, options.dev, options.test, options.seed)
    synthesise(options.out, config, options.workers)


def _train(config: RunConfig, corpus: Path, run: Path, report: Report) -> Recogniser:
    loaded = load(corpus / "train.jsonl", config.features)
    utterances, dev = usable(loaded), load(corpus / "dev.jsonl", config.features)
    shapes = choose_shapes(utterances + dev, config.train.buckets)
    minutes = sum(utterance.clip.duration for utterance in utterances) / 60
    report.say(
        f"training on {len(utterances)} utterances, {minutes:.0f} minutes"
        f" ({len(loaded) - len(utterances)} left out: too short for their text);"
        f" padded to {', '.join(map(str, shapes.frames))} frames"
    )
    steps = config.train.epochs * count_steps(config.train, utterances, shapes)
    with TrainingProgress(report, steps) as progress:
        recogniser = train(config, utterances, dev, shapes, progress)
    progress.plot(run / "learning.png")
    checkpoint.save(run, config, recogniser)
    return recogniser


def _test(
    config: RunConfig,
    recogniser: Recogniser,
    corpus: Path,
    split: str,
    run: Path,
    report: Report,
) -> None:
    utterances = load(corpus / f"{split}.jsonl", config.features)
    shapes = choose_shapes(utterances, config.train.buckets)
    transcriber = Transcriber(recogniser, shapes, config.train.batch_size)
    texts = transcriber(utterances)
    rate = error_rate(utterances, texts)
    report.speakers(error_rate_by_speaker(utterances, texts))
    every = max(1, len(utterances) // 5)
    report.sentences(utterances[::every], texts[::every])
    report.say(f"{split} CER: {100 * rate:.2f} %")
    report.record(kind=split, cer=rate)
    (logits,) = transcriber.logits(utterances[:1])
    file = run / f"posteriors-{split}.png"
    plot_posteriors(file, utterances[0], logits, config.features)


def _time(config: RunConfig, corpus: Path, report: Report) -> None:
    utterances = usable(load(corpus / "train.jsonl", config.features))
    shapes = choose_shapes(utterances, config.train.buckets)
    batches = list(make_batches(utterances, shapes, config.train.batch_size))
    batch = batches[len(batches) // 2]  # they are in order of length
    times = time_steps(config, batch)
    report.say(
        f"training step of {len(batch.rows)} x {batch.features.shape[1]} frames: "
        f"{times.engine_ms:.1f} ms with the {times.engine} engine, "
        f"{times.scan_ms:.1f} ms with lax.scan "
        f"({times.scan_ms / times.engine_ms:.2f} times)"
    )
    report.record(kind="timing", **times._asdict())


def _open_run(run: Path) -> Report:
    run.mkdir(parents=True, exist_ok=True)
    return Report(run)


def _config(options: argparse.Namespace) -> RunConfig:
    return RunConfig(
        model=ModelConfig(
            cell=options.cell,
            layers=options.layers,
            hidden_size=options.hidden_size,
            implementation=options.implementation,
        ),
        train=TrainConfig(
            epochs=options.epochs, batch_size=options.batch_size, seed=options.seed
        ),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.speech",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    commands = parser.add_subparsers(required=True)

    def command(name: str, function, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(
            name,
            help=text,
            description=text,
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        added.set_defaults(command=function)
        return added

    model, training = ModelConfig(), TrainConfig()
    for name, function, run, text in (
        ("demo", _demo, "runs/demo", "train, test and time on the digits corpus"),
        ("train", _train_only, "runs/digits", "train and keep the parameters"),
    ):
        added = command(name, function, text)
        added.add_argument("--corpus", type=Path, default=DIGITS)
        added.add_argument("--run", type=Path, default=Path(run), help="output folder")
        added.add_argument("--cell", choices=("gru", "lstm", "rnn"), default=model.cell)
        added.add_argument("--layers", type=int, default=model.layers)
        added.add_argument("--hidden-size", type=int, default=model.hidden_size)
        added.add_argument("--implementation", choices=("native", "scan"))
        added.add_argument("--epochs", type=int, default=training.epochs)
        added.add_argument("--batch-size", type=int, default=training.batch_size)
        added.add_argument("--seed", type=int, default=training.seed)

    added = command("evaluate", _evaluate, "test the model of an earlier run")
    added.add_argument("--run", type=Path, default=Path("runs/demo"))
    added.add_argument("--corpus", type=Path, default=DIGITS)
    added.add_argument("--split", choices=SPLITS, default="test")

    added = command("synth", _synth, "make a corpus; needs espeak-ng and scipy")
    added.add_argument("--out", type=Path, required=True)
    for split in SPLITS:
        default = getattr(SynthConfig, split)
        added.add_argument(f"--{split}", type=int, default=default, help="utterances")
    added.add_argument("--seed", type=int, default=SynthConfig.seed)
    added.add_argument("--workers", type=int, default=os.cpu_count())
    return parser
