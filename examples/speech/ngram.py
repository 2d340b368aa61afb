"""A word n-gram model of some texts, in the ARPA format that KenLM reads.

For corpora whose texts are at hand; large models are made by KenLM's own `lmplz`.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from . import files

START, END, UNKNOWN = "<s>", "</s>", "<unk>"


def write_arpa(texts: Iterable[str], order: int, file: Path) -> None:
    r"""Estimates the model and writes it.

    .. math:: p(w|h) = \frac{c(hw) + t(h) p(w|h')}{c(h) + t(h)}

    with c counts, t(h) the number of different words after h, and h' = h without its
    first word (Witten & Bell 1991). So h backs off with the
    weight t(h) / (c(h) + t(h)).
    """
    counts: Counter = Counter()
    for text in texts:
        words = (START, *text.split(), END)
        for size in range(1, order + 1):
            counts.update(zip(*(words[n:] for n in range(size)), strict=False))
    del counts[(START,)]  # never predicted
    total, types = Counter(), defaultdict(int)
    for (*history, _), count in counts.items():
        total[tuple(history)] += count
        types[tuple(history)] += 1

    def probability(ngram: tuple[str, ...]) -> float:
        history = ngram[:-1]
        # Every word, known or not, stands behind the empty history.
        shorter = probability(ngram[1:]) if history else 1 / (types[()] + 1)
        if not total[history]:
            return shorter
        seen = counts[ngram] + types[history] * shorter
        return seen / (total[history] + types[history])

    def lines(size: int) -> Iterator[str]:
        ngrams = sorted(ngram for ngram in counts if len(ngram) == size)
        for ngram in [(START,), (UNKNOWN,), *ngrams] if size == 1 else ngrams:
            log = -99.0 if ngram == (START,) else math.log10(probability(ngram))
            line = f"{log:.6f}\t{' '.join(ngram)}"
            if types[ngram]:
                back_off = types[ngram] / (total[ngram] + types[ngram])
                line += f"\t{math.log10(back_off):.6f}"
            yield line

    parts = [list(lines(size)) for size in range(1, order + 1)]
    head = [f"ngram {n}={len(part)}" for n, part in enumerate(parts, start=1)]
    body = [
        line
        for n, part in enumerate(parts, start=1)
        for line in ("", f"\\{n}-grams:", *part)
    ]
    text = "\n".join(["\\data\\", *head, *body, "", "\\end\\", ""])
    files.write(file, text)


def order_of(file: Path) -> int:
    """Words of the longest n-gram of a model; 0 if it is none."""
    order = 0
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            if found := re.match(r"ngram (\d+)=", line):
                order = max(order, int(found[1]))
            elif line.startswith("\\1-grams:"):
                break
    return order


def words_of(file: Path) -> list[str]:
    """The words that a model knows."""
    words = []
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("\\2-grams:"):
                break
            fields = line.split()
            if len(fields) >= 2 and fields[0][0] in "-0123456789":
                words.append(fields[1])
    return [word for word in words if word not in (START, END, UNKNOWN)]
