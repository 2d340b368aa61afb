"""A network of OpenVINO, as its file has it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from prnn_jax.convert._onnx.making import must


def integer(text: str | None, what: str) -> int:
    """A number that is written out.

    Raises:
      ValueError: it is none.
    """
    is_number = re.fullmatch(r"\s*[+-]?\d{1,19}\s*", text or "", re.ASCII)
    must(is_number is not None, f"{what} is {text!r}, and no number")
    return int(text or "")


@dataclass(frozen=True)
class Value:
    """What a layer gives: its name, and sizes, -1 where they are not fixed."""

    name: str
    shape: tuple[int, ...] | None = None
    is_float: bool = True


@dataclass(frozen=True)
class Layer:
    """A layer of a network: an operator.

    Attributes:
      name: as in the file, where no other has it.
      kind: its operator, as "LSTMSequence".
      options: its attributes, as they are written.
      inputs: the names of what it reads; empty where there is nothing.
      outputs: what it gives.
      stored: of a constant, its numbers.
      fault: of a constant, why there are none; empty if they are there.
      body: of a loop.
      holds: the kinds of layers in bodies that are not read, as of an If.
    """

    name: str
    kind: str
    options: Mapping[str, str]
    inputs: tuple[str, ...]
    outputs: tuple[Value, ...]
    stored: np.ndarray | None = None
    fault: str = ""
    body: "Body | None" = None
    holds: Sequence[str] = ()

    def option(self, name: str, default: str = "") -> str:
        """One of its attributes."""
        return self.options.get(name, default)

    def number(self, name: str, default: int = 0) -> int:
        """One that is a whole number."""
        return integer(self.options.get(name, str(default)), f"{name} of {self.name}")

    def flag(self, name: str, default: bool = False) -> bool:
        """One that is true or false."""
        return self.options.get(name, str(default)).lower() in ("true", "1")

    def several(self, name: str) -> list[str]:
        """One that is a list."""
        parts = (part.strip() for part in self.options.get(name, "").split(","))
        return [part for part in parts if part]


@dataclass(frozen=True)
class Port:
    """What a loop gives its body, or takes of it.

    Attributes:
      outside: the place among the loop's inputs or outputs; -1 for none.
      inside: the name of the body's input or result.
      axis: along which it is one part in each step; None if it is whole.
      stride: from one part to the next, and whether from the last one on.
      is_whole: whether all parts are taken, each of size 1.
      purpose: of a Loop's own values.
    """

    outside: int
    inside: str
    axis: int | None = None
    stride: int = 1
    is_whole: bool = True
    purpose: str = ""


@dataclass(frozen=True)
class Body:
    """What a loop runs in each step.

    Attributes:
      network: its layers.
      inputs: what it is given.
      outputs: what is taken of it.
      back: the names of results, by those of the inputs that they are a step later.
    """

    network: "Network"
    inputs: Sequence[Port]
    outputs: Sequence[Port]
    back: Mapping[str, str]


@dataclass(frozen=True)
class Network:
    """The layers of a file, or of a body."""

    name: str
    layers: Sequence[Layer] = field(default_factory=list)

    def all_layers(self) -> Iterator[Layer]:
        """Those of bodies too."""
        for layer in self.layers:
            yield layer
            if layer.body is not None:
                yield from layer.body.network.all_layers()
