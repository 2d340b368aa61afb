"""A call to be tried, as plain data, and the arrays it is made with."""

import dataclasses
import json
import math
from dataclasses import dataclass

from .oracle import GATES, STATES, own_numbers

LETTERS = "hcnm"  # of states
SIZES = "time", "input_size", "outer"
WIDEST = {"int8": 127, "uint8": 255}  # what lengths of a dtype go up to


@dataclass(frozen=True)
class Map:
    """A `jax.vmap`: of which arrays, and whether their last axis is the mapped one."""

    size: int = 2
    over: tuple[str, ...] = ()
    last: bool = False


@dataclass(frozen=True)
class Case:
    """One call. The first value that each field may have is the simplest.

    Attributes:
      clip: bound of pre-activations, and of an LSTM's c; 0 for none.
      normed: what the cell's LayerNorm says: of, over, c and epsilon, with spaces; or
        none.
      lengths: dtype of the lengths, "list", "number" or none; so are resets.
      known: lengths and resets are constants of the program rather than arguments.
      zoneout: "number", "scalar" (of NumPy), "draws", "bools", "shares" or "tuple".
      padding: where NaN is: in "x" past the lengths, in the "state" of rows without
        steps, in the state before a "reset".
      scale: of x: large numbers saturate gates.
      maps: `jax.vmap`s, outermost first; as many as `outer` are around the derivative.
      derivative: "forward", "vjp", "grad", "second" or "jvp".
      inside: of what the call is: "checkpoint..." with a policy, "scan" or "jit".
      way: "quick" and "jit" compile.
      bare: of `recurrence`, whose x is the pre-activations.
      wide: arrays are NumPy's float64, which JAX takes for float32.
      mesh: "auto", "explicit" or "manual", whose axes `shard` names.
      symbolic: exported, with the "t"ime or "b"atch not known; "-" with both known.
      cut: x has a step more, which is left out inside of the program.
      layers: of a stack, or 0.
      host: library of the layer: "nnx", "linen" or "equinox".
    """

    cell: str = "lstm"
    time: int = 3
    batch: tuple[int, ...] = (2,)
    hidden: int = 4
    input_size: int = 3
    heads: int = 0
    bidirectional: bool = False
    reverse: bool = False
    merge: str = "concat"
    time_major: bool = False
    biases: str = "both"
    state: bool = False
    dtype: str = "float32"
    reset_after: bool = True
    activation: str = "tanh"
    gate_activation: str = "sigmoid"
    cap: float = 0.5
    skip: float = 0.0
    clip: float = 0.0
    normed: str = ""
    lengths: str = ""
    known: bool = False
    resets: str = ""
    reset_to: bool = False
    mask: bool = False
    zoneout: str = ""
    padding: str = ""
    scale: float = 1.0
    lean: bool = False
    implementation: str | None = None
    maps: tuple[Map, ...] = ()
    outer: int = 0
    derivative: str = "forward"
    outputs: str = "both"
    inside: str = ""
    way: str = "quick"
    x64: bool = False
    promotion: str = ""
    prepared: bool = False
    bare: bool = False
    wide: bool = False
    mesh: str = ""
    shard: tuple[str, ...] = ()
    devices: int = 0
    symbolic: str = ""
    cut: bool = False
    layers: int = 0
    stacked: bool = False
    norm: bool = False
    skip_connections: bool = False
    host: str = ""
    seed: int = 0

    def __str__(self) -> str:
        """Only what is not as it is in the simplest case."""
        fields = [(f.name, getattr(self, f.name), f.default) for f in _FIELDS]
        said = ", ".join(f"{name}={v!r}" for name, v, usual in fields if v != usual)
        return f"Case({said})"

    def json(self) -> str:
        return json.dumps(
            {
                f.name: getattr(self, f.name)
                for f in _FIELDS
                if getattr(self, f.name) != f.default
            },
            default=dataclasses.asdict,
        )

    @classmethod
    def of_json(cls, text: str) -> "Case":
        fields = json.loads(text)
        for name in ("batch", "shard"):
            fields[name] = tuple(fields.get(name, getattr(cls, name)))
        fields["maps"] = tuple(
            Map(m["size"], tuple(m["over"]), m["last"]) for m in fields.get("maps", ())
        )
        return cls(**fields)

    # ---- sizes -----------------------------------------------------------------------

    @property
    def directions(self) -> int:
        return 1 + self.bidirectional

    @property
    def width(self) -> int:
        """Of a direction's y."""
        return self.hidden * max(self.heads, 1)

    @property
    def features(self) -> int:
        """Of y."""
        return self.width * (1 if self.merge == "sum" else self.directions)

    @property
    def order(self) -> tuple[int, ...]:
        return (self.time, *self.batch) if self.time_major else (*self.batch, self.time)

    @property
    def state_shape(self) -> tuple[int, ...]:
        return (*(2,) * self.bidirectional, *self.batch, self.width)

    @property
    def suffixes(self) -> list[str]:
        """Of the names of each layer's arrays."""
        return [f"_{n}" for n in range(self.layers)] if self.layers else [""]

    @property
    def states(self) -> str:
        return LETTERS[: STATES[self.cell]]

    # ---- arrays ----------------------------------------------------------------------

    def floats(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape, without mapped axes, and expression of each floating array."""
        lead = (2,) * self.bidirectional + (self.heads,) * (self.heads > 0)
        wide = GATES[self.cell] * self.hidden
        steps = dataclasses.replace(self, time=self.time + self.cut).order
        size = self.input_size
        if self.bare:
            size = self.directions * max(self.heads, 1) * wide
        out = {"x": ((*steps, size), f"draw({{}}, scale={self.scale:g})")}
        small = 0.7 if self.activation not in ("tanh", "softsign") else 1
        for suffix in self.suffixes:
            if self.norm:
                out["scale" + suffix] = ((size,), "draw({}, scale=1)")
                out["shift" + suffix] = ((size,), "draw({})")
            of_x = f"draw({{}}, scale={max(size, 1) ** -0.5:.3g})"
            of_h = f"draw({{}}, scale={small * self.hidden**-0.5:.3g})"
            if not self.bare:
                out["w_ih" + suffix] = ((*lead, size, wide), of_x)
            out["w_hh" + suffix] = ((*lead, self.hidden, wide), of_h)
            for name in ("b_ih", "b_hh")[self.bare :]:
                if self.biases in (name, "both"):
                    out[name + suffix] = ((*lead, wide), "draw({})")
            if self.normed:
                own = own_numbers(self.cell, self.normed) * self.hidden
                out["own" + suffix] = ((*lead, own), "draw({}, scale=1)")
            size = self.features
            for pattern, is_there in (("0", self.state), ("to", self.reset_to)):
                for letter in self.states if is_there else ():
                    kind = "positive({})" if letter == "n" else "draw({})"
                    out[f"{letter}_{pattern}{suffix}"] = (self.state_shape, kind)
        if self.mask:
            out["mask"] = (self.state_shape, "(1.5 * flags({}, 0.7)).astype(dtype)")
        y = (*self.order, self.directions * self.width)
        if self.zoneout in ("draws", "shares"):
            kind = "flags({}, 0.3)" if self.zoneout == "draws" else "shares({})"
            out["zone"] = (y, kind)
        elif self.zoneout == "tuple":  # a number for the first state
            for letter in self.states[1:] or self.states:
                out[f"zone_{letter}"] = (y, "shares({})")
        return out

    def constants(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """The same for what has no gradient."""
        out = {}
        if self.lengths:
            most = min(self.time, WIDEST.get(self.lengths, self.time))
            kind = "int32" if self.lengths in ("list", "number") else self.lengths
            draw = f"rng.integers(0, {most + 1}, {{}}).astype({kind!r})"
            out["lengths"] = (self.batch, draw)
        if self.resets:
            kind = "bool" if self.resets == "list" else self.resets
            out["resets"] = (self.order, f"flags({{}}, 0.25).astype({kind!r})")
        if self.zoneout == "bools":
            y = (*self.order, self.directions * self.width)
            out["zone"] = (y, "flags({}, 0.3).astype(bool)")
        return out

    def mapped(self, name: str, levels: tuple[Map, ...] | None = None) -> list[Map]:
        """The levels that map an array, outermost first."""
        levels = self.maps if levels is None else levels
        return [level for level in levels if name in level.over]

    def full_shape(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        for level in reversed(self.mapped(name)):
            shape = (*shape, level.size) if level.last else (level.size, *shape)
        return shape

    def output_shapes(self) -> list[tuple[int, ...]]:
        """Of what the call gives, mapped axes first."""
        lead = tuple(level.size for level in self.maps)
        chunks = (2,) * (self.inside == "scan")
        y = (*chunks, *self.order, self.features)
        states = [self.state_shape] * len(self.states) * max(self.layers, 1)
        if self.stacked:
            one = len(self.states)
            rest = [(self.layers - 1, *self.state_shape)] * one
            states = [*states[:one], *rest]
        shapes = {"y": [y], "state": states, "both": [y, *states]}[self.outputs]
        return [(*lead, *shape) for shape in shapes]

    def has(self, other: "Case") -> bool:
        """Whether it has all that is particular about another, simpler case."""
        for f in _FIELDS:
            mine, its = getattr(self, f.name), getattr(other, f.name)
            if its == f.default or f.name in ("seed", "batch", "hidden", "devices"):
                continue
            if f.name == "maps":
                if len(mine) < len(its):
                    return False
                over = {n for level in its for n in level.over}
                if not over <= {n for level in mine for n in level.over}:
                    return False
            elif isinstance(its, int) and its > f.default:
                if mine < its:
                    return False
            elif mine != its and (f.name not in SIZES or its == 0):
                return False
        return True

    @property
    def work(self) -> int:
        """Multiplications of the recurrence, about."""
        return math.prod(level.size for level in self.maps) * (
            self.time
            * math.prod(self.batch)
            * self.directions
            * max(self.heads, 1)
            * GATES[self.cell]
            * self.hidden
            * (self.hidden + self.input_size)
            * max(self.layers, 1)
        )


_FIELDS = dataclasses.fields(Case)
