"""The cells and sizes of `against_scan`; other benchmarks take points from here."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import prnn_jax

OURS, BASELINE = "native", "scan"  # values of `implementation`

MODES = ("forward", "train")
HIDDEN_SIZES = (64, 128, 256, 512, 1024)
BATCHES = (1, 4, 16, 32)

#: The largest |native - scan| / |scan| that rounding explains: some twenty times what
#: float32 sums of up to 4096 terms, over 128 steps, were seen to differ by.
#: In 16 bits it is the scan that is wrong by so much: it rounds after every operation.
TOLERANCES = {"float32": 1e-5, "bfloat16": 0.1, "float16": 0.02}

#: The same for gradients through a ReLU, whose derivative jumps. About one in ten
#: million pre-activations rounds to the other side of 0, and then the gradient of one
#: unit at one step is there or not.
RELU_GRADIENT_TOLERANCE = 1e-2


@dataclass(frozen=True)
class Cell:
    """A public function with the options that make it one cell."""

    title: str
    function: Callable
    gates: int
    options: dict


CELLS = {
    "lstm": Cell("LSTM", prnn_jax.lstm, 4, {}),
    "gru": Cell("GRU", prnn_jax.gru, 3, {"reset_after": True}),
    "rnn": Cell("RNN (ReLU)", prnn_jax.rnn, 1, {"activation": "relu"}),
}


@dataclass(frozen=True)
class Point:
    """One layer, one mode, one size; input_size = hidden_size."""

    cell: str
    mode: str
    hidden_size: int
    batch: int
    time: int
    dtype: str = "float32"

    def __str__(self) -> str:
        sizes = f"H{self.hidden_size}-B{self.batch}-T{self.time}"
        return f"{self.cell}-{self.mode}-{sizes}-{self.dtype}"

    @property
    def step_flop(self) -> int:
        """Of the products in one step of a forward pass, the input projection's too."""
        gates = CELLS[self.cell].gates
        return 4 * gates * self.hidden_size**2 * self.batch

    @property
    def tolerance(self) -> float:
        """The largest difference from the baseline that is not an error."""
        through_relu = self.mode == "train" and self.cell == "rnn"
        rounding = TOLERANCES[self.dtype]
        return max(RELU_GRADIENT_TOLERANCE, rounding) if through_relu else rounding


def steps(cell: str, hidden_size: int, batch: int) -> int:
    """128; halved while a forward pass would exceed 20 GFLOP, but never below 32."""
    time = 128
    step_flop = Point(cell, "forward", hidden_size, batch, time).step_flop
    while time > 32 and time * step_flop > 20e9:
        time //= 2
    return time


def points(
    cells: Sequence[str] = tuple(CELLS),
    modes: Sequence[str] = MODES,
    hidden_sizes: Sequence[int] = HIDDEN_SIZES,
    batches: Sequence[int] = BATCHES,
    time: int | None = None,
    dtype: str = "float32",
) -> list[Point]:
    """All combinations; `time` as `steps` chooses it if not given."""
    return [
        Point(cell, mode, hidden, batch, time or steps(cell, hidden, batch), dtype)
        for cell, mode, hidden, batch in itertools.product(
            cells, modes, hidden_sizes, batches
        )
    ]
