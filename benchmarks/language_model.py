"""How fast does a word model train, and does it learn the same?

EcoRNN's model (Zheng et al. 2018, arXiv:1805.08899): embeddings of 650, two LSTMs of
650, batches of 32 rows and 35 steps, dropout of a half between the layers, SGD at a
rate of 1 with gradients clipped at 0.2. Its text is made here, so that nothing is
downloaded. Trained by our layers, by `lax.scan` and by torch.nn, from the same weights
on the same batches. Run it as `python -m benchmarks.language_model`.
"""

import argparse
import contextlib
import dataclasses
import functools
import itertools
import random
from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks import _command_line as command_line
from benchmarks import _harness as harness
from benchmarks import _peers
from benchmarks import _word_models as word_models
from benchmarks._word_models import Model
from benchmarks._workers import Worker

NAME = "language_model"
OURS = "native"
#: The candidates and the workers they run in.
FRAMEWORKS = {OURS: "jax", "scan": "jax", "torch": "torch"}
TITLES = {OURS: "native", "scan": "`lax.scan`", "torch": "torch.nn"}

BATCHES, DROPOUT, BUDGET_S = 150, 0.5, 30.0

#: For so many batches a curve must be that of ours to within this: losses of float32
#: differ by 1e-7 at first, and each step multiplies it. The rest is only reported.
EARLY, EARLY_TOLERANCE = 5, 1e-4


# ---- the text ------------------------------------------------------------------------

#: Words with a number of their own: ends of sentence and paragraph, "that", "of", and
#: the article in singular and plural.
_STOP, _PARAGRAPH, _THAT, _OF, _ARTICLE, _FIXED = 0, 1, 2, 3, 4, 6


def corpus(words: int, vocabulary: int) -> np.ndarray:
    """A text in an invented language, as numbers of words; always the same.

    A verb agrees with its subject, in number and in which verbs go with it, also where
    a relative clause with a subject and verb of its own stands between them. A
    paragraph draws all nouns from its topic. So a word depends on one next to it, some
    words before and a hundred words before. Frequencies are Zipf's.
    """
    sentences = _sentences(random.Random(0), vocabulary)
    return np.fromiter(itertools.chain.from_iterable(sentences), np.int32, words)


def _sentences(draw: random.Random, vocabulary: int) -> Iterator[list[int]]:
    nouns = verbs = (vocabulary - _FIXED) // 6  # each in singular and plural
    adjectives = vocabulary - _FIXED - 2 * (nouns + verbs)
    topics = max(1, nouns // 30)

    def zipf(count: int) -> int:
        return int(count ** draw.random()) - 1

    def noun_phrase(topic: int) -> tuple[list[int], int, int]:
        """The words; the noun and its number, with which the verb agrees."""
        noun, plural = (topic + topics * zipf(nouns // topics)) % nouns, draw.random()
        plural = int(plural < 0.4)
        words = [_ARTICLE + plural]
        if draw.random() < 0.4:
            words.append(_FIXED + 2 * (nouns + verbs) + zipf(adjectives))
        return [*words, _FIXED + 2 * noun + plural], noun, plural

    def clause(topic: int) -> list[int]:
        subject, noun, plural = noun_phrase(topic)
        if draw.random() < 0.2:
            subject += [_OF, *noun_phrase(topic)[0]]
        if draw.random() < 0.25:
            subject += [_THAT, *clause(topic)]
        verb = (5 * noun + zipf(verbs)) % verbs
        verb = _FIXED + 2 * nouns + 2 * verb + plural
        return [*subject, verb, *noun_phrase(topic)[0]]

    while True:
        topic = zipf(topics)
        for _ in range(draw.randint(4, 12)):
            yield [*clause(topic), _STOP]
        yield [_PARAGRAPH]


def batches(model: Model, count: int) -> np.ndarray:
    """Of the text: `[count, batch, steps + 1]`, each row going on where it was."""
    length = count * model.steps + 1
    rows = corpus(model.batch * length, model.vocabulary).reshape(model.batch, length)
    starts = np.arange(count) * model.steps
    return np.stack([rows[:, s : s + model.steps + 1] for s in starts])


# ---- measuring -----------------------------------------------------------------------


@contextlib.contextmanager
def started() -> Iterator[dict[str, Worker]]:
    """A worker for each candidate that is installed."""
    packages = dict.fromkeys(harness.installed(*FRAMEWORKS.values()))
    with contextlib.ExitStack() as stack:
        workers = {
            package: stack.enter_context(Worker(package, {"JAX_PLATFORMS": "cpu"}))
            for package in packages
        }
        yield {n: workers[p] for n, p in FRAMEWORKS.items() if p in workers}


def measure(
    workers: dict[str, Worker], model: Model, count: int, budget_s: float
) -> dict:
    """What is recorded: curves, what they differ by, and the speed of training.

    Raises:
      harness.DisagreementError: without dropout a candidate learns something else.
    """
    words = batches(model, count)
    plain = dataclasses.replace(model, dropout=0.0)
    perplexity = {
        "without dropout": _curves(workers, plain, words),
        "with dropout": _curves(workers, model, words),
    }
    check(perplexity["without dropout"])
    # The same keys make the same masks; torch has its own.
    same = {k: v for k, v in perplexity["with dropout"].items() if k != "torch"}
    samplers = {
        name: functools.partial(worker.call, word_models.sample, name)
        for name, worker in workers.items()
    }
    timings = harness.measure_samplers(samplers, budget_s=budget_s)
    per_step = model.batch * model.steps
    speed = {
        name: harness.Spread.of(per_step / s for s in timing.seconds)
        for name, timing in timings.items()
    }
    ratios = {
        name: harness.ratio(timings[name], timings[OURS])
        for name in timings
        if name != OURS
    }
    return {
        "model": dataclasses.asdict(model),
        "rounds": len(timings[OURS].seconds),
        "words_per_s": {name: dataclasses.asdict(s) for name, s in speed.items()},
        "ratio": {name: dataclasses.asdict(r) for name, r in ratios.items()},
        "perplexity": perplexity,
        "difference": {
            "without dropout": _differences(perplexity["without dropout"]),
            "with dropout": _differences(same),
        },
        "absent": {n: "not installed" for n in FRAMEWORKS if n not in workers},
    }


def _curves(
    workers: dict[str, Worker], model: Model, words: np.ndarray
) -> dict[str, list[float]]:
    return {
        name: worker.call(word_models.curve, name, model, words)
        for name, worker in workers.items()
    }


def check(curves: dict[str, list[float]]) -> None:
    """All begin as ours does, with the gradients of the first batches in it."""
    first = {
        name: functools.partial(np.asarray, c[:EARLY]) for name, c in curves.items()
    }
    ours = first.pop(OURS)
    harness.check_agreement(
        "perplexity", {**first, OURS: ours}, tolerance=EARLY_TOLERANCE
    )


def _differences(curves: dict[str, list[float]]) -> dict[str, float]:
    """The largest relative difference of each curve from ours."""
    ours = np.asarray(curves[OURS])
    return {
        name: float(np.max(np.abs(np.asarray(curve) - ours) / ours))
        for name, curve in curves.items()
        if name != OURS
    }


# ---- results -------------------------------------------------------------------------


def table(results: dict) -> str:
    """Markdown: a row for each candidate."""
    last = {kind: len(next(iter(c.values()))) for kind, c in _kinds(results)}
    header = ["trained by", "words per s", "ours is faster by"]
    for kind, count in last.items():
        header += [f"perplexity at batch {count}, {kind}", "differs from ours by"]
    rows = []
    for name, speed in results["words_per_s"].items():
        ratio = results["ratio"].get(name)
        row = [TITLES[name], f"{speed['median']:.0f}"]
        row.append("–" if ratio is None else f"{ratio['median']:.2f}×")
        for kind, curves in _kinds(results):
            difference = results["difference"][kind].get(name)
            row.append(f"{curves[name][-1]:.1f}")
            row.append("–" if difference is None else f"{difference:.1g}")
        rows.append(row)
    return harness.markdown(header, rows)


def _kinds(results: dict):
    return results["perplexity"].items()


# ---- command line --------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs what the arguments say."""
    parser = command_line.parser(NAME, __doc__.splitlines()[0], BUDGET_S)
    size = command_line.positive(int)
    for name in ("embed", "hidden", "vocabulary", "batch", "steps"):
        default = getattr(Model(), name)
        parser.add_argument(f"--{name}", type=size, default=default)
    parser.add_argument("--batches", type=size, default=BATCHES)
    options = parser.parse_args(arguments)
    results = command_line.outcome(parser, options, _measure_all)
    print(f"{table(results)}\n\n{harness.provenance(results)}.")


def _measure_all(options: argparse.Namespace) -> dict:
    sizes = {f.name for f in dataclasses.fields(Model)} & vars(options).keys()
    model = Model(dropout=DROPOUT, **{n: getattr(options, n) for n in sizes})
    with started() as workers:
        found = workers[OURS].call(_peers.device)
        measured = measure(workers, model, options.batches, options.budget_s)
    packages = ("jax", "jaxlib", *harness.installed("numpy", "torch"), "prnn_jax")
    return {
        "device": harness.device(found["instruction_set"]),
        "versions": harness.versions(*packages),
        "platform": "cpu",
        **measured,
    }


if __name__ == "__main__":
    main()
