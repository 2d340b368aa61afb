"""Cases of the LSTM whose h is a product (LSTMP), and parameters of one."""

import zlib
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from cases import CONTROLS, Case
from support import assert_as_accurate, named, oracle, scan

import prnn_jax

IN, HIDDEN, OUT, ROWS, TIME = 5, 7, 3, 4, 6

PROJECTED_CONTROLS = tuple(name for name in CONTROLS if name != "zoneout")
HALVES = "bfloat16", "float16"


@dataclass(frozen=True)
class Projected(Case):
    """A case with so many columns of w_hr, of a head; in numbers of a 16-bit format."""

    projection: int = 9
    half: str = ""

    def __str__(self) -> str:
        controls = "-".join(self.controls)
        parts = super().__str__(), f"P{self.projection}", self.half, controls
        return "-".join(filter(None, parts))

    @property
    def state_shape(self) -> tuple[int, ...]:
        """Of h, and of what is shaped like it."""
        return self.of_states[0]

    @property
    def of_states(self) -> tuple[tuple[int, ...], ...]:
        lead, heads = (2,) * self.bidirectional, max(self.heads, 1)
        widths = self.projection, self.hidden
        return tuple((*lead, *self.batch, heads * width) for width in widths)

    def inputs(self, dtype=jnp.float32):
        arrays = super().inputs(self.half or dtype)
        random = np.random.default_rng(zlib.crc32(b"p" + str(self).encode()))
        lead = (2,) * self.bidirectional + (self.heads,) * (self.heads > 0)
        of_h, of_c = self.of_states
        shapes = {"w_hh": (*lead, self.projection, 4 * self.hidden)}
        shapes |= {"w_hr": (*lead, self.hidden, self.projection)}
        shapes |= {"h_0": of_h, "c_0": of_c, "reset_h": of_h, "reset_c": of_c}
        for name, shape in shapes.items():
            if name in arrays or name == "w_hr":
                scale = shape[-2] ** -0.5 if name[0] == "w" else 0.5
                value = random.standard_normal(shape) * scale
                arrays[name] = value.astype(np.float32).astype(self.half or dtype)
        return self._rounded(arrays, dtype)

    def control_arrays(self, dtype=jnp.float32):
        return self._rounded(super().control_arrays(self.half or dtype), dtype)

    def cotangents(self, dtype=jnp.float32):
        random = np.random.default_rng(zlib.crc32(b"d" + str(self).encode()))
        y = (*self.order, self.directions * max(self.heads, 1) * self.projection)
        dy, *dstate = (
            random.standard_normal(shape).astype(np.float32).astype(self.half or dtype)
            for shape in (y, *self.of_states)
        )
        return self._rounded((dy, tuple(dstate)), dtype)

    def _rounded(self, arrays, dtype):
        def cast(a):
            return a.astype(dtype) if self.half and a.dtype == self.half else a

        return jax.tree.map(cast, arrays)

    def params(self, arrays):
        return super().params(arrays)._replace(w_hr=arrays["w_hr"])

    def prepared(self, arrays, batch=None, time=0, weights=None):
        made = prnn_jax.prepare(
            "lstm",
            self.params(arrays),
            batch=batch or max(self.rows, 1),
            time=time or max(self.time, 1),
            bidirectional=self.bidirectional,
            weights=weights,
        )
        names = "w_ih", "w_hh", "w_hr"
        return (
            arrays
            | {n: getattr(made.params, n) for n in names}
            | {"packed": made.packed}
        )


@dataclass(frozen=True)
class Fast(Projected):
    """A lean case the other way, with the same numbers."""

    def __str__(self) -> str:
        return str(Projected(**{**vars(self), "lean": True}))


def data(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def params_of(*, size: int = OUT, **options) -> prnn_jax.Params:
    key = jax.random.key(0)
    return prnn_jax.init("lstm", key, IN, HIDDEN, proj_size=size, **options)


def assert_as_accurate_as_the_scan(case: Projected) -> None:
    """The native engine, forward and backward, beside float64."""
    of_scan, exact = scan(case), oracle(case)
    forward = named(*case.forward("native")(case.inputs()))
    gradients = case.gradient("native")(case.inputs(), case.cotangents())
    assert_as_accurate(forward, of_scan.forward, exact.forward)
    assert_as_accurate(gradients, of_scan.gradients, exact.gradients)
