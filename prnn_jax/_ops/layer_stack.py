"""Several layers, one on top of the other."""

import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Unpack, get_args

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from prnn_jax._call.call import Call
from prnn_jax._call.controls import as_array, checked_lengths, steps_that_count
from prnn_jax._call.noise import Noise, check_noise
from prnn_jax._call.options import (
    GivenState,
    Implementation,
    Lengths,
    MaskedY,
    Merge,
    Options,
    Precision,
    Reserve,
    Resets,
)
from prnn_jax._cells.activations import GivenActivation, GivenActivations
from prnn_jax._cells.clip import Clip
from prnn_jax._cells.table import AnyCell, check_cell_name
from prnn_jax._engine.eager import compiled_once
from prnn_jax._engine.linear_plan import LinearCellName
from prnn_jax._engine.sharding import match_varying
from prnn_jax._given import checks
from prnn_jax._given.checks import check
from prnn_jax._given.params import Params, Prepared
from prnn_jax._given.statics import flag
from prnn_jax._linear.call import LinearCall, run_linear
from prnn_jax._linear.table import FunctionOptions
from prnn_jax._ops.at_once import layers_at_once
from prnn_jax._ops.run import call_of, run_layer
from prnn_jax._ops.stack_parts import (
    Layer,
    StackOptions,
    check_form,
    check_layers,
    check_width,
    normalized,
    size_of,
)

#: From so many equal layers on they run in a loop. Fewer compile no faster in one, and
#: train up to a quarter slower (benchmarks/compile_time.py): XLA neither overlaps nor
#: fuses steps of a loop, and copies each layer's weights.
LOOP_FROM = 8


def stack(
    cell: AnyCell | LinearCellName,
    x: ArrayLike,
    layers: Sequence[Params | Prepared | Mapping[str, Any] | Layer],
    state_0: Sequence[GivenState | None] | None = None,
    *,
    lengths: Lengths | None = None,
    mask: ArrayLike | None = None,
    masked_y: MaskedY = "hold",
    resets: Resets | None = None,
    reset_to: Sequence[GivenState | None] | None = None,
    bidirectional: bool = False,
    merge: Merge = "concat",
    dropout: float = 0.0,
    recurrent_dropout: float = 0.0,
    zoneout: float | tuple[float, ...] = 0.0,
    key: Array | None = None,
    skip_connections: bool = False,
    time_major: bool = False,
    reserve: Reserve = "fast",
    precision: Precision = None,
    implementation: Implementation | None = None,
    reset_after: bool = True,
    activation: GivenActivations | None = None,
    gate_activation: GivenActivation = "sigmoid",
    clip: Clip | None = None,
    cap: float = 20.0,
    skip: float = 0.0,
    **own: Unpack[FunctionOptions],
) -> tuple[Array, tuple[Any, ...]]:
    r"""Layers of one kind over whole sequences, each on what the one before it gives.

    .. math::
      y_k = \mathrm{cell}_k(\mathrm{norm}_k(x_k)) \qquad
      x_{k+1} = d_k ⊙ y_k \; [+ \, x_k]

    for k = 0 … n-1, with :math:`x_0` = x and the result :math:`x_n`. norm is layer norm
    over the features (Ba et al. 2016, arXiv:1607.06450), if the layer has one;
    :math:`d_k` is dropout's mask (Srivastava et al. 2014, JMLR 15), 1 for the last
    layer; the term in brackets is there with skip_connections.

    Equal layers, from eight on, run in a `lax.scan`, so that a hundred of them compile
    like one. Their arrays are stacked for that in each call; a `Layer` that is stacked
    already saves the copy. So a deep stack best is `[first, Layer(rest, stacked=True)]`
    with a first layer for x, which is of another width.

    On a GPU, layers with nothing between them may run at once, each a step behind the
    one below (PRNN_CUDA_STACKS=1; `explain` with layers says whether and why).

    Masks are drawn from `jax.random.fold_in(jax.random.fold_in(key, k), kind)`, kind
    being 0 for dropout, 1 for recurrent dropout and 2 for zoneout (and there once more,
    with the number of the state).

    Args:
      cell: "lstm", "slstm", "gru" or "rnn", with the equations given there; or what
        `define_cell` has made; or "min_gru", "min_lstm", "sru", "qrnn", "rg_lru",
        "lru" or "indrnn", whose steps have no product.
      x: `[*batch, time, input]`, any number of batch axes, also none.
      layers: `Params` each, or what `prepare` makes of them, or `Layer` with a norm, or
        for several layers in one. Of cells without a product, the arguments of the
        function by name, as `init` gives them.
        The input of the second and later layers is as wide as the y of the one before:
        hidden (or the projection), or twice that for bidirectional layers with
        "concat".
      state_0: one for each of `layers`, shaped as for the cell's own function; for
        stacked layers one whose arrays have the axis of these, too. Zeros where None.
      lengths: `[*batch]`, as in `lstm`. The result is zero at steps that do not count.
      mask: `[*batch, time]`, as in `lstm`, for all layers; where it is zero, what the
        layers hand on is what masked_y says of each.
      masked_y: as in `lstm`, for every layer.
      resets: `[*batch, time]`, as in `lstm`, for all layers.
      reset_to: what states are replaced with, of the form of state_0.
      bidirectional: as in `lstm`, for every layer.
      merge: as in `lstm`, for every layer.
      dropout: share of each y's values, but the last layer's, that become zero; the
        others grow to keep the mean. A new draw for each row, step and feature.
      recurrent_dropout: the same for h where it enters the product with w_hh; a draw
        for each row and unit, the same at all steps (Gal & Ghahramani 2016,
        arXiv:1512.05287).
      zoneout: share of states that keep their value in a step (Krueger et al. 2017,
        arXiv:1606.01305), a number or, for the LSTM, a pair, of h and of c; of the
        QRNN, of c. A new draw for each row, step and unit.
      key: of `jax.random`. None is evaluation: nothing is dropped, and zoneout is its
        mean, :math:`s' = k s + (1 - k) s_{new}` with k the share.
      skip_connections: add a layer's input, before its norm, to its output, where they
        have the same width.
      time_major: x, y, mask and resets are `[time, *batch, ...]`.
      reserve: as in `lstm`.
      precision: as in `lstm`.
      implementation: as in `lstm`.
      reset_after: as in `gru`.
      activation: as in the cell's own function, whose default is None here.
      gate_activation: as in `lstm` and `gru`.
      clip: as in `lstm`.
      cap: as in `rnn`.
      skip: as in `rnn`.
      **own: as in the cell's own function: pooling, skip_scale, c.

    Returns:
      y `[*batch, time, hidden]` of the last layer, and the last states, a tuple of the
      form of state_0.

    Raises:
      ValueError: shapes, dtypes or options do not fit; says in which layer, and what
        was expected.
    """
    options = StackOptions.of(locals())
    linear = get_args(LinearCellName)
    check_cell_name("stack", cell, linear)
    checks.known_options("stack", own, FunctionOptions)
    if cell in linear:
        of_linear: Any = cell
        call = LinearCall.of("stack", of_linear, options, own)
    else:
        check(
            not own,
            f"stack: only cells without a product in a step have "
            f"{', '.join(own)}, got cell={cell!r}.",
        )
        of_product: Any = cell
        call = call_of("stack", of_product, options)
    tower, y, form = tower_of("stack", call, x, layers, options)
    at_once = tower.at_once(y, form)
    if at_once is not None:
        return at_once
    states, first = [], 0
    for members in _runs(*form):
        parts = [tuple(column[n] for column in form) for n in members]
        layer = parts[0][0]
        count = size_of("stack", members[0], layer) if layer.stacked else len(members)
        if layer.stacked:
            y, state = tower.run(y, first, count, parts[0])
            states.append(state)
        elif count < LOOP_FROM:
            y, each = tower.one_by_one(y, first, parts)
            states += each
        else:
            y, state = tower.loop(y, first, count, _stacked(parts))
            states += apart(state, count)
        first += count
    return y, tuple(states)


def tower_of(
    op: str, call: Call | LinearCall, x: Any, layers: Any, options: StackOptions
) -> tuple["Tower", Array, Any]:
    """A stack whose arguments have been checked, in the words of function `op`.

    Returns:
      The tower, x, and of `layers`, state_0 and reset_to an entry for each of layers.
    """
    time_major = call.time_major
    skip_connections = flag(op, "skip_connections", options.skip_connections)
    entries = checks.canonical(check_layers(op, call, layers))
    state_0, reset_to = checks.canonical((options.state_0, options.reset_to))
    sizes = [size_of(op, n, entry) for n, entry in enumerate(entries)]
    x = checks.jax_array(op, "x", x)
    axes = "time, *batch" if time_major else "*batch, time"
    check(x.ndim >= 2, f"{op}: x must be [{axes}, input], got {list(x.shape)}.")
    lengths, mask, resets = options.lengths, options.mask, options.resets
    if lengths is not None:
        batch = x.shape[1:-1] if time_major else x.shape[:-2]
        time = x.shape[0] if time_major else x.shape[-2]
        lengths = checked_lengths(op, lengths, batch, time)
        if skip_connections or any(e.norm is not None for e in entries):
            # What the padding holds must not come through what is beside a layer.
            x = _only_valid(x, lengths, time_major=time_major)
    if mask is not None:
        given: Any = as_array(op, "mask", mask)
        names = ("time", "*batch") if time_major else ("*batch", "time")
        checks.shape(op, "mask", given, names, x.shape[:-1])
        mask = given
        if skip_connections or any(e.norm is not None for e in entries):
            x = jnp.where(jnp.asarray(given).astype(bool)[..., None], x, 0)
    if resets is not None:
        resets = as_array(op, "resets", resets)
    form = (
        entries,
        check_form(op, "state_0", state_0, sizes, entries),
        check_form(op, "reset_to", reset_to, sizes, entries),
    )
    rates = options.dropout, options.recurrent_dropout, options.zoneout
    noise = check_noise(op, call, *rates)
    checks.key(op, options.key, optional=True)
    tower = Tower(
        call,
        noise,
        skip_connections,
        (options.merge, options.masked_y),
        sum(sizes),
        _Shared(options.key, lengths, mask, resets),
        run_layer if isinstance(call, Call) else run_linear,
    )
    return tower, x, form


class _Shared(NamedTuple):
    """Arrays that all layers of a stack have."""

    key: Array | None
    lengths: Array | None
    mask: Any
    resets: Any


_NOTHING = _Shared(None, None, None, None)


class Tower(NamedTuple):
    """How each layer of a stack runs. A part is its `(layer, state_0, reset_to)`.

    `y`: how it is made: merge and masked_y.
    `run_layer`: as `run.run_layer`, what runs a layer; what it gives as the state is
    passed on.

    Hashable where shared is _NOTHING.
    """

    call: Any  # a `Call`, or a `LinearCall`
    noise: Noise
    skip_connections: bool
    y: tuple[Merge, MaskedY]
    size: int
    shared: _Shared
    run_layer: Callable

    def layer(self, op: str, x: Array, n: int | Array, part) -> tuple[Array, Any]:
        """The n-th layer; messages begin with `op`."""
        layer, state_0, reset_to = part
        key, lengths, mask, resets = self.shared
        merge, masked_y = self.y
        u = x if layer.norm is None else normalized(op, x, layer.norm)
        features = self.call.features(op, layer.params)
        y, state = self.run_layer(
            op,
            self.call,
            u,
            layer.params,
            Options(
                merge=merge,
                lengths=lengths,
                mask=mask,
                masked_y=masked_y,
                resets=resets,
                **self.noise.controls(key, n, self.call, x, features),
                state_0=state_0,
                reset_to=reset_to,
            ),
        )
        y = self.noise.drop(key, n, y, unless=n == self.size - 1)
        if self.skip_connections and y.shape == x.shape:
            y = y + x
        return y, state

    def at_once(self, x: Array, form) -> tuple[Array, tuple[Any, ...]] | None:
        """All layers in one call; None where each has its turn."""
        layers, state_0, reset_to = form
        key, *others = self.shared
        is_plain = isinstance(self.call, Call) and not self.skip_connections
        is_plain = is_plain and not any(self.noise.zoneout)
        is_plain = is_plain and (key is None or not self.noise)
        if not is_plain or any(a is not None for a in (*others, *reset_to)):
            return None
        given = layers_at_once(self.call, x, layers, state_0)
        return None if given is None else (given[0], tuple(given[1]))

    def one_by_one(self, x: Array, first: int, parts: Sequence) -> tuple[Array, list]:
        states = []
        for n, part in enumerate(parts, first):
            check_width("stack", n, self.call, part[0].params, x.shape[-1])
            x, state = self.layer(f"stack, layer {n}", x, n, part)
            states.append(state)
        return x, states

    def loop(self, x: Array, first: int, count: int, parts) -> tuple[Array, Any]:
        """Layers whose arrays are stacked, by `lax.scan`; so are the states."""
        static = self._replace(shared=_NOTHING)
        return _loop(static, first, count, self.shared, x, parts)

    def run(self, x: Array, first: int, count: int, parts) -> tuple[Array, Any]:
        """Layers whose arrays are stacked; so are the states."""
        if count >= LOOP_FROM:
            return self.loop(x, first, count, parts)
        x, states = self.one_by_one(x, first, apart(parts, count))
        return x, _stacked(states)


@compiled_once(static_argnums=(0, 1, 2))
def _loop(
    tower: Tower, first: int, count: int, shared: _Shared, x: Array, parts
) -> tuple[Array, Any]:
    """`Tower.loop`, of a tower without its arrays."""
    x, parts = match_varying((x, parts))
    tower = tower._replace(shared=shared)

    def step(x, inputs):
        n, part = inputs
        params = part[0].params
        check_width("stack", first, tower.call, params, x.shape[-1])
        y, state = tower.layer(f"stack, layer {first}", x, n, part)
        check_width("stack", first + 1, tower.call, params, y.shape[-1])
        return y, state

    steps = first + jnp.arange(count, dtype=jnp.int32)
    return lax.scan(step, x, (steps, parts))


def _runs(*form: Sequence) -> Iterator[list[int]]:
    """Numbers of entries in a row that are equal but for the numbers in them."""

    def kind(n: int):
        part = tuple(column[n] for column in form)
        leaves, structure = jax.tree.flatten(part)
        own = n if part[0].stacked else None
        arrays = [(getattr(a, "shape", 0), getattr(a, "dtype", 0)) for a in leaves]
        return structure, arrays, own

    for _, members in itertools.groupby(range(len(form[0])), kind):
        yield list(members)


def _stacked(trees: Sequence) -> Any:
    return jax.tree.map(lambda *arrays: jnp.stack(arrays), *trees)


def apart(tree: Any, count: int) -> list:
    """The inverse of `_stacked`."""
    return [jax.tree.map(operator.itemgetter(n), tree) for n in range(count)]


def _only_valid(x: Array, lengths: Array, *, time_major: bool) -> Array:
    """x, with zeros at the steps that do not count."""
    time = x.shape[0 if time_major else -2]
    return jnp.where(steps_that_count(lengths, time, time_major=time_major), x, 0)
