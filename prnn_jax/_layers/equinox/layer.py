"""What the recurrent layers for Equinox share: parameters, options and the call."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from prnn_jax._call.call import Call
from prnn_jax._call.choose import GATED, cell_of
from prnn_jax._call.noise import check_noise
from prnn_jax._call.options import (
    Implementation,
    Lengths,
    Merge,
    Options,
    Precision,
    Reserve,
    Resets,
    State,
)
from prnn_jax._cells.activations import GivenActivation, GivenActivations
from prnn_jax._cells.clip import Clip
from prnn_jax._cells.table import CELLS, AnyCell
from prnn_jax._given import checks, statics
from prnn_jax._given.checks import check
from prnn_jax._given.params import Params, typed
from prnn_jax._layers import imported
from prnn_jax._layers.arrays import (
    alike,
    begin_own,
    check_kept,
    checked_proj_size,
    layer_arrays,
    own_numbers,
)
from prnn_jax._layers.dtypes import promoted
from prnn_jax._layers.equinox.arrays import batch_axes, check_sequence
from prnn_jax._layers.equinox.training import Training
from prnn_jax._layers.keywords import in_its_own_name
from prnn_jax.convert import Imported
from prnn_jax.convert._shared import layouts


class Layer(eqx.Module):
    """All that the layers share; a layer is a function, two numbers and its options."""

    w_ih: Array
    w_hh: Array
    b_ih: Array | None
    b_hn: Array | None
    peepholes: Array | None
    w_hr: Array | None
    training: Training | None
    input_size: int = eqx.field(static=True)
    hidden_size: int = eqx.field(static=True)
    use_bias: bool = eqx.field(static=True)
    reverse: bool = eqx.field(static=True)
    bidirectional: bool = eqx.field(static=True)
    merge: Merge = eqx.field(static=True)
    heads: int = eqx.field(static=True)
    reserve: Reserve = eqx.field(static=True)
    precision: Precision = eqx.field(static=True)
    implementation: Implementation | None = eqx.field(static=True)
    activation: GivenActivations = eqx.field(static=True)
    gate_activation: GivenActivation = eqx.field(static=True)
    clip: Clip | None = eqx.field(static=True)
    proj_size: int | None = eqx.field(static=True)

    _function: ClassVar[Callable]
    _cell_name: ClassVar[str]  # in `_cells.table.CELLS`
    # Arguments of the function that not all functions have.
    _option_names: ClassVar[tuple[str, ...]] = GATED

    @in_its_own_name
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        use_bias: bool = True,
        dtype: Any = None,
        *,
        reverse: bool = False,
        bidirectional: bool = False,
        merge: Merge = "concat",
        heads: int = 1,
        recurrent_dropout: float = 0.0,
        zoneout: float | tuple[float, ...] = 0.0,
        inference: bool = False,
        reserve: Reserve = "fast",
        precision: Precision = None,
        implementation: Implementation | None = None,
        activation: GivenActivations = "tanh",
        gate_activation: GivenActivation = "sigmoid",
        clip: Clip | None = None,
        peepholes: bool = False,
        proj_size: int | None = None,
        key: Array,
    ):
        name = type(self).__name__
        input_size = statics.size(name, "input_size", input_size)
        hidden_size = statics.size(name, "hidden_size", hidden_size)
        heads = statics.size(name, "heads", heads)
        reverse = statics.flag(name, "reverse", reverse)
        bidirectional = statics.flag(name, "bidirectional", bidirectional)
        checks.one_of(name, "merge", merge, get_args(Merge))
        checks.one_of(name, "reserve", reserve, get_args(Reserve))
        choices = (None, *get_args(Implementation))
        checks.one_of(name, "implementation", implementation, choices)
        check(
            not (reverse and bidirectional),
            f"{name}: reverse must be False in a bidirectional layer, which runs both "
            "ways, got True.",
        )
        check(
            hidden_size % heads == 0,
            f"{name}: heads must divide hidden_size={hidden_size}, got {heads}.",
        )
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.use_bias = statics.flag(name, "use_bias", use_bias)
        self.reverse = reverse
        self.bidirectional = bidirectional
        self.merge = merge
        self.heads = heads
        self.reserve = reserve
        statics.precision(name, precision)
        self.precision = statics.hashable(precision)
        self.implementation = implementation
        self.activation = statics.hashable(activation)
        self.gate_activation = gate_activation
        self.clip = statics.hashable(clip)
        of_all = {option: getattr(self, option) for option in GATED}
        table = CELLS[self._cell_name]
        self.proj_size = checked_proj_size(name, table, proj_size, heads)
        cell_of(
            name, self._named(), Options(reserve=reserve, **of_all | self._options())
        )
        noise = check_noise(
            name,
            self._call(),
            recurrent_dropout=recurrent_dropout,
            zoneout=zoneout,
        )
        self.training = Training.of(noise, inference)

        dtype = jnp.result_type(float) if dtype is None else dtype
        draw = functools.partial(self._draw, dtype=dtype)
        if heads > 1:
            draw = _drawn_apart(draw, heads)
        if bidirectional:
            draw = _drawn_apart(draw, 2)
        self.w_ih, self.w_hh, self.b_ih, self.b_hn, self.w_hr = draw(key)
        count = own_numbers(name, table, peepholes)
        own = (*self.w_hh.shape[:-2], count * hidden_size // heads)
        self.peepholes = begin_own(table, own, dtype) if count else None

    @classmethod
    def from_params(cls, params: Params | Imported, **options: Any) -> Self:
        """A layer with these parameters, such as `prnn_jax.convert` gives.

        Args:
          params: of one layer, or a network of one, with its options. Of two biases the
            layer has the sum, but for the GRU's b_hn. Their type says what a leading
            axis is: `BidirectionalParams` make a bidirectional layer,
            `MultiHeadParams` one with heads. Without any bias the layer has
            use_bias=False.
          **options: other arguments of the layer.

        Raises:
          ValueError: shapes do not fit the cell or the options; says what was expected.
        """
        name = f"{cls.__name__}.from_params"
        params, options = imported.layer_of(name, cls._named(), params, options)
        given = layer_arrays(name, CELLS[cls._cell_name], params, options)
        made_of = {
            "use_bias": given.b_ih is not None or given.b_hn is not None,
            "bidirectional": given.bidirectional,
            "heads": given.heads or 1,
            "dtype": given.w_hh.dtype,
            **({} if given.peepholes is None else {"peepholes": True}),
            "proj_size": given.proj_size,
            **options,
        }
        make: Any = functools.partial(cls, given.input_size, given.hidden_size)
        layer = eqx.filter_eval_shape(make, **made_of, key=jax.random.key(0))
        b_ih, b_hn = given.b_ih, given.b_hn
        if layer.b_ih is not None and b_ih is None:
            b_ih = jnp.zeros(layer.b_ih.shape, layer.b_ih.dtype)
        if layer.b_hn is not None and b_hn is None:
            b_hn = jnp.zeros(layer.b_hn.shape, layer.b_hn.dtype)
        own = given.peepholes
        check_kept(name, given, layer.peepholes, layer.proj_size)
        if layer.peepholes is not None and own is None:
            own = begin_own(
                CELLS[cls._cell_name], layer.peepholes.shape, layer.peepholes.dtype
            )
        arrays = (given.w_ih, given.w_hh, b_ih, b_hn, own, given.w_hr)
        check(
            layer.b_ih is not None or (b_ih is None and b_hn is None),
            f"{name}: use_bias must be True for params with a bias, got False.",
        )

        def where(layer):
            of_biases = layer.b_ih, layer.b_hn
            return layer.w_ih, layer.w_hh, *of_biases, layer.peepholes, layer.w_hr

        arrays = jax.tree.map(jnp.asarray, arrays)
        return eqx.tree_at(where, layer, arrays, is_leaf=lambda x: x is None)

    @property
    def params(self) -> Params:
        """The parameters, for `prnn_jax.lstm` and the others."""
        own = self.b_ih, self.b_hn, self.peepholes, self.w_hr
        params = layouts.join_biases(self.w_ih, self.w_hh, *own)
        heads = self.heads > 1
        return typed(params, bidirectional=self.bidirectional, heads=heads)

    @property
    def output_size(self) -> int:
        """Features of ys."""
        both = self.bidirectional and self.merge == "concat"
        return (2 if both else 1) * self._output

    @property
    def _output(self) -> int:
        """Values of h."""
        return self.hidden_size if self.proj_size is None else self.proj_size

    @in_its_own_name
    def __call__(
        self,
        xs: Array,
        state: State | None = None,
        *,
        lengths: Lengths | None = None,
        mask: ArrayLike | None = None,
        resets: Resets | None = None,
        reset_to: State | None = None,
        time_major: bool = False,
        key: Array | None = None,
        inference: bool | None = None,
    ) -> tuple[Array, Any]:
        """Runs the layer over a whole sequence.

        Args:
          xs: `[time, input_size]`, or `[*batch, time, input_size]`.
          state: before the first step: h for GRU and RNN, `(h, c)` for LSTM,
            `(h, c, n, m)` for SLSTM, each `[*batch, hidden_size]` (h `[*batch,
            proj_size]` if the layer has one); if bidirectional,
            `[2, *batch, hidden_size]`, forward before backward. Zeros if not given.
          lengths: whole numbers `[*batch]`, how many steps of each row count, as in
            `prnn_jax.lstm`. Without batch axes it is one number.
          mask: `[*batch, time]`: where zero, the step does not count: the state stays
            as it is, and ys has the last h before it. In place of lengths, and without
            resets.
          resets: `[*batch, time]`: where not zero, the state is replaced before that
            step.
          reset_to: what it is replaced with, shaped as state; zeros if not given.
          time_major: xs, ys, mask and resets are `[time, *batch, ...]`.
          key: for recurrent dropout and zoneout; needed if the layer has some, except
            at inference. Masks are those of `prnn_jax.stack` for its first layer.
          inference: overrides the layer's own.

        Returns:
          ys `[*batch, time, hidden_size]` (or proj_size), every h (twice as wide if
          bidirectional and merged by "concat"), and the last state. With arrays of
          several dtypes, both are in that to which JAX promotes them.

        Raises:
          ValueError: shapes, dtypes or options do not fit; says what was expected.
        """
        name = type(self).__name__
        time_major = statics.flag(name, "time_major", time_major)
        check_sequence(name, xs, self.input_size, time_major=time_major)
        arrays = promoted((xs, self.params, state, reset_to))
        xs, params, state, reset_to = arrays
        masks = {}
        if self.training is not None:
            key = self.training.key(name, key, inference)
            call = self._call(time_major=time_major)
            masks = self.training.noise.controls(key, 0, call, xs, self._output)
            masks = {k: mask for k, mask in masks.items() if mask is not None}
        return type(self)._function(
            xs,
            params,
            state,
            lengths=lengths,
            mask=mask,
            resets=resets,
            reset_to=reset_to,
            reverse=self.reverse,
            bidirectional=self.bidirectional,
            merge=self.merge,
            time_major=time_major,
            reserve=self.reserve,
            precision=self.precision,
            implementation=self.implementation,
            **masks,
            **self._options(),
        )

    def zeros(self, *batch: int) -> Any:
        """A state of zeros, in the dtype of the parameters."""
        batch = batch_axes(batch)
        others = (self.hidden_size,) * (self._call().table.states - 1)
        lead = (2,) * self.bidirectional
        states = tuple(
            jnp.zeros((*lead, *batch, width), self.w_hh.dtype)
            for width in (self._output, *others)
        )
        return states if others else states[0]

    # ---- what a layer may say differently --------------------------------------------

    def _options(self) -> dict[str, Any]:
        """Arguments of the function that not all functions have."""
        return {name: getattr(self, name) for name in self._option_names}

    @classmethod
    def _named(cls) -> AnyCell:
        """The cell as `prnn_jax.stack` takes it."""
        return CELLS[cls._cell_name].function

    def _call(self, *, time_major: bool = False) -> Call:
        """As what is dropped knows it."""
        table = CELLS[self._cell_name]
        name = self._cell_name if self.proj_size is None else table.with_projection
        assert name is not None
        return Call(name, bidirectional=self.bidirectional, time_major=time_major)

    def _draw(self, key: Array, dtype: Any) -> tuple[Any, ...]:
        """Of one direction and head, drawn as by Equinox, in the order of fields."""
        gates, hidden = CELLS[self._cell_name].gates, self.hidden_size // self.heads
        output = self._output // self.heads
        keys = jax.random.split(key, 4 if self._has_b_hn() is not None else 3)
        last = jax.random.fold_in(key, 4)
        lim = math.sqrt(1 / hidden)

        def uniform(key, *shape):
            return jax.random.uniform(key, shape, dtype, minval=-lim, maxval=lim)

        return (
            uniform(keys[0], gates * hidden, self.input_size).T,
            uniform(keys[1], gates * hidden, output).T,
            uniform(keys[2], gates * hidden) if self.use_bias else None,
            uniform(keys[3], hidden) if self.use_bias and self._has_b_hn() else None,
            None if self.proj_size is None else uniform(last, output, hidden).T,
        )

    def _has_b_hn(self) -> bool | None:
        """Whether there is a b_hn; None for a cell that has none in any case."""
        return None

    # ---- in a stack ------------------------------------------------------------------

    @classmethod
    def _alike(cls, op: str, layers: Sequence[Any]) -> dict[str, Any]:
        """Options that all layers of a stack have, by their parameters."""
        biases = ([p.b_ih, p.b_hh] for p in layers if isinstance(p, Params))
        has_bias = any(bias is not None for both in biases for bias in both)
        return {"use_bias": has_bias, **alike(op, layers)}

    def _told(self) -> dict[str, Any]:
        """The layer's options that parameters tell."""
        names = "bidirectional", "heads", "proj_size"
        return {name: getattr(self, name) for name in names}

    def _float32_params(self) -> tuple[str, ...]:
        """Which parameters may stay float32 beside 16 bits."""
        return ()

    def _for_stack(self) -> dict[str, Any]:
        """Arguments of `prnn_jax.stack` that each layer has."""
        names = "bidirectional", "merge", "reserve", "precision", "implementation"
        return {name: getattr(self, name) for name in names} | self._options()


def _drawn_apart(draw: Callable, count: int) -> Callable:
    """`draw` with a leading axis of so many, each with a key of its own."""

    def several(key: Array):
        # One by one: what XLA makes of a vmap over keys takes seconds to compile.
        drawn = [draw(key) for key in jax.random.split(key, count)]
        return jax.tree.map(lambda *arrays: jnp.stack(arrays), *drawn)

    return several
