"""Settings in TOML files and on the command line.

A file is read as if its lines stood on the command line, in front of what does:
`cell = "gru"` under `[model]` is `--model.cell gru`. So there is one parser, one check
of types, and one message for a key that does not exist, which names the nearest.
"""

import dataclasses
import json
import math
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tyro

from . import files
from .config import RunConfig
from .errors import SpeechError


def load(file: Path) -> RunConfig:
    """The settings in a file; those it does not have are the defaults."""
    return tyro.cli(RunConfig, prog=str(file), args=arguments(file))


def save(config: RunConfig, file: Path) -> None:
    """Writes what `load` reads."""
    sections = []
    for section, values in dataclasses.asdict(config).items():
        lines = [
            f"{key} = {_written(value)}"
            for key, value in values.items()
            if value is not None
        ]
        sections.append("\n".join([f"[{section}]", *lines]))
    content = "\n\n".join(sections) + "\n"
    try:
        content.encode()
    except UnicodeEncodeError as error:
        line = content[: error.end].splitlines()[-1]
        raise SpeechError(f"expected settings in UTF-8, got {line}") from None
    files.write(file, content)


def _written(value: Any) -> str:
    """JSON's strings, booleans, lists and most numbers are TOML's."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # inf or nan
    return json.dumps(value, default=str, ensure_ascii=False)


def with_files(given: Sequence[str]) -> list[str]:
    """The arguments, with `--config FILE` replaced by the settings in it."""
    expanded, rest = [], list(given)
    while rest:
        argument = rest.pop(0)
        name, equals, value = argument.partition("=")
        if name != "--config":
            expanded.append(argument)
            continue
        if not equals and not rest:
            raise SpeechError("--config needs the name of a TOML file")
        # In front of the others, whose values then win; behind the command's name.
        expanded[1:1] = arguments(Path(value if equals else rest.pop(0)))
    return expanded


def arguments(file: Path) -> list[str]:
    """A file's settings as arguments of the command line."""
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpeechError(f"{file}: {error}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SpeechError(f"{file}: expected settings in TOML; {error}") from None
    return [argument for pair in _flat(table) for argument in _argument(*pair)]


def differences(one: RunConfig, other: RunConfig) -> list[str]:
    """Settings that differ, each with both values."""
    values, others = (dict(_flat(dataclasses.asdict(c))) for c in (one, other))
    return [
        f"{key}: {value} and {others[key]}"
        for key, value in values.items()
        if value != others[key]
    ]


def _flat(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _argument(key: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        section, _, name = key.rpartition(".")
        return [f"--{section}.{name if value else 'no-' + name}"]
    if isinstance(value, list):
        return [f"--{key}", *map(str, value)]
    return [f"--{key}={value}"]  # a value may begin with a dash
