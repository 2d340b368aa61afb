"""What is static in a native call.

`Call` crosses to C++ field by field (ffi/attributes.h), apart from `precision`, of
which the native engines need to know only whether it is `exact`.

Arrays of a call, with G gates, N groups (independent recurrences: directions, heads):

- sequences `[batch, time, N, n]`, or `[time, batch, N, n]` if time_major: a_x
  (n = G*hidden), y (n = output)
- `w_hh [N, output, G*hidden]`, `b_hh [N, G*hidden]`, states `[batch, N, output]` (h)
  and `[batch, N, hidden]` (others)
- output is what h is wide: hidden, or with `w_hr [N, hidden, output]` what that gives
- of a stack's layers, a_x and dy have one group, and w_hh is `[N, 2*hidden, G*hidden]`:
  w_hh of each, and below it w_ih, zeros of the first
- what else a call may have: `_call.controls.Controls`
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jax import Array

from prnn_jax._cells.activations import USUAL, Activations
from prnn_jax._cells.clip import Clip
from prnn_jax._cells.table import CELLS, Cell
from prnn_jax._given import checks
from prnn_jax._given.params import Params, Prepared, plain
from prnn_jax._given.statics import is_exact

#: A letter for each axis of an array: b batch, t time, g group, x features.
Axes = str


@dataclass(frozen=True)
class Call:
    """Static configuration of a recurrence; hashable.

    Attributes:
      cell: key of `_cells.table.CELLS`.
      time_major: whether sequences begin with time.
      reverse: whether all groups run from the last step to the first.
      bidirectional: whether the second half of the groups runs against the first.
      is_stack: whether the groups are layers of a stack, each on the y of the one
        before it (`_engine.at_once`).
      save: what the forward pass returns for the backward pass: "nothing", "all", or
        only the "states" besides h, from which the gates can be made again.
      lean: whether the backward pass makes the gates again instead of reading them.
      skip: scale of the residual through time (RNN only).
      cap: upper bound of the activation (clipped ReLU only).
      f: activations, of the cells that have a choice.
      clip: bounds of the step, of the same cells, as `_cells.clip.checked` gives them;
        `f` has those that are its own.
      precision: of the scan's products and of those outside the recurrence.
      implementation: "native", "scan", or None for the best that the platform has.
      max_sms: streaming multiprocessors of a GPU that a call may take; 0 for all.
    """

    cell: str
    time_major: bool = False
    reverse: bool = False
    bidirectional: bool = False
    is_stack: bool = False
    save: Literal["nothing", "all", "states"] = "nothing"
    lean: bool = False
    skip: float = 0.0
    cap: float = math.inf
    f: Activations = USUAL
    clip: Clip | None = None
    precision: Any = None
    implementation: str | None = None
    max_sms: int = 0

    @property
    def exact(self) -> bool:
        """Whether a GPU multiplies float32 in float32, and not in TF32."""
        return is_exact(self.precision)

    @property
    def clips_gradients(self) -> bool:
        """Whether gradients are bounded inside of the steps."""
        return self.clip is not None and self.clip.gradients is not None

    @property
    def table(self) -> Cell:
        """The cell's row in the table."""
        return CELLS[self.cell]

    def outer(self, y: Array) -> Array:
        """Of a stack's layers, y of the last."""
        return y[:, :, -1:] if self.is_stack else y

    @property
    def batch_axis(self) -> int:
        """Axis of the batch in a sequence."""
        return 1 if self.time_major else 0

    @property
    def time_axis(self) -> int:
        """Axis of time in a sequence."""
        return 0 if self.time_major else 1

    @property
    def data_axes(self) -> dict[int, Axes]:
        """Of what has a batch axis, by rank: sequences, and states or what is alike."""
        groups = "x" if self.is_stack else "g"  # layers are not independent
        return {
            4: f"tb{groups}x" if self.time_major else f"bt{groups}x",
            3: f"b{groups}x",
        }

    def matrix(self, params: Params | Prepared) -> tuple[str, Array]:
        """What multiplies the input, and its name."""
        return "w_ih", plain(params).w_ih

    def features(self, op: str, params: Params | Prepared) -> int:
        """Values of h of one direction, of all heads."""
        w_hh = checks.array(op, "w_hh", plain(params)[1])
        return math.prod(w_hh.shape[self.bidirectional : -1])

    def saved(self, *, zoneout: bool) -> int:
        """Values that the forward pass returns per unit and step, besides y.

        Args:
          zoneout: whether the call has any.
        """
        states, reserve = self.table.states - 1, self.table.reserve
        if self.table.keeps_made and zoneout:
            reserve += 1
        return {"nothing": 0, "states": states, "all": reserve + states}[self.save]

    def attributes(
        self, dtype, controls, *, projects: bool = False, prepared: bool = False
    ) -> dict:
        """The fields C++ reads, in types the FFI encodes as such.

        Of the controls, which of them the call has. `projects`: whether it is given
        what a_x is made of, and `prepared`: and packed weights besides. The cap, and
        where activations end, as numbers of `dtype`: what is compared with them has
        been stored.
        """
        return {
            "cell": self.table.name,
            "activations": activations_attribute(self.f, dtype),
            "norm": "" if self.table.norm is None else self.table.norm.attribute,
            "clip": clip_attribute(self.f, self.clip, dtype),
            "projects": projects,
            "prepared": prepared,
            "time_major": self.time_major,
            "reverse": self.reverse,
            "bidirectional": self.bidirectional,
            "is_stack": self.is_stack,
            "save": self.save,
            "has_lengths": controls.lengths is not None,
            "has_resets": controls.resets is not None,
            "has_mask": controls.mask is not None,
            "has_zoneout": controls.zoneout is not None,
            "skip": np.float32(self.skip),
            "cap": np.float32(np.asarray(self.cap, dtype)),
            "exact": self.exact,
            "max_sms": self.max_sms,
        }

    def reversed_groups(self, groups: int) -> np.ndarray:
        """For each group, whether it runs from the last step to the first."""
        second = np.arange(groups) >= groups // 2
        return np.asarray(self.reverse) != (self.bidirectional & second)


def activations_attribute(f: Activations, dtype) -> str:
    """Of the gates, the candidate, the output: "kind alpha beta low high", in bits.

    A string, for an array inside of a dictionary is no attribute that JAX takes.
    """
    words = []
    for kind, *scale, low, high, _, _ in f:
        ends = np.asarray([low, high], dtype).astype(np.float32)
        bits = np.concatenate([np.asarray(scale, np.float32), ends]).view(np.uint32)
        words += [kind, *(f"{word:08x}" for word in bits)]
    return " ".join(words)


def clip_attribute(f: Activations, clip: Clip | None, dtype) -> str:
    """Ends, in bits: of what gates and candidate make, of c, of gradients, of h."""
    if clip is None:
        return ""
    most = math.inf if clip.gradients is None else clip.gradients
    state: Any = clip.state or (-math.inf, math.inf)
    of_h = math.inf if clip.projection is None else clip.projection
    with np.errstate(over="ignore"):  # ∞, in 16 bits
        ends = [*f.gate.ends, *f.candidate.ends, *state, -of_h, of_h]
        *ends, least_h, most_h = np.asarray(ends, dtype).astype(np.float32)
    ends = [*ends, -most, most, least_h, most_h]
    return " ".join(f"{word:08x}" for word in np.asarray(ends, "f").view(np.uint32))


@dataclass(frozen=True)
class Sizes:
    """Sizes of a call.

    Attributes:
      time: steps.
      batch: rows.
      groups: independent recurrences.
      hidden: units of a group.
      output: values of h and y; hidden where nothing projects.
    """

    time: int
    batch: int
    groups: int
    hidden: int
    output: int

    @classmethod
    def of(cls, call: Call, sequence: Array, w_hh: Array) -> "Sizes":
        """Of a call with these weights, whose sequences are as long as this one."""
        groups, output, columns = w_hh.shape
        return cls(
            time=sequence.shape[call.time_axis],
            batch=sequence.shape[call.batch_axis],
            groups=groups,
            hidden=columns // call.table.gates,
            output=output // 2 if call.is_stack else output,
        )

    def sequence(self, call: Call, values: int) -> tuple[int, ...]:
        """Shape of a sequence with `values` values per hidden unit."""
        return self._sequence(call, values * self.hidden)

    def y(self, call: Call) -> tuple[int, ...]:
        """Shape of y."""
        return self._sequence(call, self.output)

    def states(self, call: Call) -> tuple[tuple[int, int, int], ...]:
        """Shapes of the states."""
        others = (self.hidden,) * (call.table.states - 1)
        return tuple((self.batch, self.groups, n) for n in (self.output, *others))

    def projection(self, call: Call) -> int:
        """The output, as the native engines are told it: 0 where nothing projects."""
        return self.output if call.table.projects else 0

    def _sequence(self, call: Call, width: int) -> tuple[int, ...]:
        rows = (self.batch, self.time)
        rows = rows[::-1] if call.time_major else rows
        return (*rows, self.groups, width)
