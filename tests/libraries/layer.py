"""What the layers of all libraries are to the tests."""

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest

from prnn_jax import Params

IN, HIDDEN, TIME, BATCH = 4, 3, 5, 2
State = tuple[np.ndarray, ...]


def library(name: str):
    """The module; no library is loaded before a test needs it."""
    if name == "keras":
        # Keras writes its settings into its home, and chooses a backend once.
        os.environ["KERAS_BACKEND"] = "jax"
        os.environ["KERAS_HOME"] = tempfile.mkdtemp()
    return pytest.importorskip(name)


@dataclass(frozen=True)
class Layer:
    """A layer of a library, which we can run.

    Attributes:
      cell: its name in the library.
      options: of the library's layer.
      ours: options of our function that computes the same.
      layers: how many, one upon the other.
      bidirectional: whether each has two directions.
      b_hh: what the library can do with our b_hh: "keep" it, "add" it to b_ih, or
        "none", if it must not be there.
    """

    cell: str
    options: Mapping[str, Any] = field(default_factory=dict)
    ours: Mapping[str, Any] = field(default_factory=dict)
    layers: int = 1
    bidirectional: bool = False
    b_hh: str = "add"

    time_major: ClassVar[bool] = False
    dtype: ClassVar[str] = "float64"
    tolerance: ClassVar[float] = 1e-10

    def __str__(self) -> str:
        settings = [f"{k}={v}" for k, v in {**self.options, **self.ours}.items()]
        settings += [f"{self.layers}-layers"] if self.layers > 1 else []
        settings += ["bidirectional"] if self.bidirectional else []
        return "-".join((type(self).__name__, self.cell, *settings))

    @property
    def function(self) -> str:
        """Ours."""
        return next((n for n in ("lstm", "gru") if n.upper() in self.cell), "rnn")

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1

    def arrays(self, draw) -> Any:
        """Random arrays, `draw(shape)`, in the form that the library has them."""
        raise NotImplementedError

    def run(self, arrays: Any, x, state: State) -> tuple[np.ndarray, State]:
        """What the library computes: y in the order of x, last states."""
        raise NotImplementedError

    def read(self, arrays: Any) -> tuple[Params, ...]:
        """By the converter; each layer's `Params`."""
        raise NotImplementedError

    def write(self, layers: tuple[Params, ...]) -> Any:
        """By the converter."""
        raise NotImplementedError
