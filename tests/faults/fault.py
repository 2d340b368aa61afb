"""A mistake in the CUDA engine, made on purpose, and the check that notices it.

A mistake is one of `emulator/faults.h` (`fault=` among the options), one of the host or
an edit of a source: the text must be there exactly once, so that a change of the engine
that makes an entry meaningless is a failure, too.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    variant: str  # of the program (emulator/build.py)
    report: str  # regular expression of what it says


CHECKS = {
    "value": Check("plain", r"(result|sum) \d (differs by|has a NaN|has no NaN)"),
    "work": Check("plain", r"does \d+ products, \d+ are needed"),
    "deadlock": Check(
        "plain", r"deadlock: .*\n  block \d+ @ .* x \d+ \(\w+\.cuh:\d+\)"
    ),
    "emulator": Check("plain", r"block \d+ thread \d+ @ "),  # the operation's own
    "alignment": Check("plain", r"\(misaligned\)"),
    "race": Check("thread", r"ThreadSanitizer: data race"),
    # Far beyond an array there may be one that is freed.
    "bounds": Check(
        "address", r"(heap-buffer-overflow|heap-use-after-free|out of bounds)"
    ),
}


@dataclass(frozen=True)
class Edit:
    file: str  # of cuda/, or core/ and its name
    old: str
    new: str


@dataclass(frozen=True)
class Fault:
    name: str
    check: str
    # Instances; check_cuda_engine.cc tells how these and options are written.
    compiled: str
    options: tuple[str, ...]
    edits: tuple[Edit, ...] = ()


# Instances, and options that choose cases of them.
GRID = "lstm-forward-bf16-grid0"
GRID_BACKWARD = "lstm-backward-bf16-grid0"
CLUSTER = "lstm-forward-bf16-cluster3"
BLOCK = "lstm-forward-bf16-block4"
# Small; several jobs for a team; rows that are no multiple of 16 bytes.
SMALL = ("cases=*-T3-B3-*",)
JOBS = ("cases=*-B14-*",)
ALL = ("cases=*-H? *-H??",)
LENGTHS = ("cases=*-lengths-*",)
CONTROLS = ("cases=*-all-*",)


def edit(name, check, compiled, options, file, old, new):
    return Fault(name, check, compiled, options, (Edit(file, old, new),))
