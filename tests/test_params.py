"""What the leading axis of `Params` is: directions or heads, said by their type."""

import functools
import pickle
import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from support import assert_bitwise_equal

import prnn_jax
import prnn_jax.equinox
import prnn_jax.linen
import prnn_jax.nnx
from prnn_jax import BidirectionalParams, Layer, MultiHeadParams, Params, convert

IN, HIDDEN, TIME, BATCH = 3, 4, 5, 2
GATES = {"lstm": 4, "slstm": 4, "gru": 3, "rnn": 1}
KINDS = [Params, BidirectionalParams, MultiHeadParams]
X = np.random.default_rng(1).standard_normal((BATCH, TIME, IN)).astype(np.float32)


def some(kind, *lead: int, cell: str = "lstm", size: int = IN) -> Params:
    wide = GATES[cell] * HIDDEN
    shapes = (*lead, size, wide), (*lead, HIDDEN, wide), (*lead, wide), (*lead, wide)
    draw = np.random.default_rng(0).standard_normal
    return kind(*(jnp.asarray(draw(shape), jnp.float32) for shape in shapes))


def raises(*parts: str):
    return pytest.raises(ValueError, match=".*".join(map(re.escape, parts)))


def layer(cell: str, params, **options):
    return getattr(prnn_jax, cell)(X, params, **options)[0]


def stacked(cell: str, params, **options):
    return prnn_jax.stack(cell, X, [params], **options)[0]


def prepared(cell: str, params, **options):
    packed = prnn_jax.prepare(cell, params, batch=BATCH, time=TIME, **options)
    return layer(cell, packed, **options)


def prepared_elsewhere(cell: str, params, **options):
    return layer(cell, prnn_jax.Prepared(params, None), **options)


def recurrence(cell: str, params, **options):
    a_x = jnp.zeros((BATCH, TIME, 2 * GATES[cell] * HIDDEN))
    return prnn_jax.recurrence(cell, a_x, params.w_hh, **options)[0]


every_cell = pytest.mark.parametrize("cell", GATES)
CALLS = [layer, stacked, prepared, prepared_elsewhere]
every_call = pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)


# ---- what a call makes of them -------------------------------------------------------


@every_cell
@every_call
def test_directions_need_bidirectional(call, cell):
    params = some(BidirectionalParams, 2, cell=cell)
    with raises(
        "params are BidirectionalParams, w_hh [2, 4, ",
        "write bidirectional=True",
        "split_directions",
        "prnn_jax.MultiHeadParams(*params)",
    ):
        call(cell, params)
    with raises("params are BidirectionalParams", "write bidirectional=True"):
        call(cell, some(BidirectionalParams, 2, 3, cell=cell))


@every_call
@pytest.mark.filterwarnings("error")
def test_directions(call):
    params = some(BidirectionalParams, 2)
    ours = call("lstm", params, bidirectional=True)
    assert_bitwise_equal(ours, call("lstm", Params(*params), bidirectional=True))


@every_cell
@every_call
def test_heads_are_not_directions(call, cell):
    params = some(MultiHeadParams, 2, cell=cell)
    with raises(
        "params are MultiHeadParams, w_hh [2, 4, ",
        "bidirectional=True. Leave that out",
        "stack_directions",
    ):
        call(cell, params, bidirectional=True)


@every_call
@pytest.mark.filterwarnings("error")
def test_heads(call):
    params = some(MultiHeadParams, 2)
    ours = call("lstm", params)
    with pytest.warns(UserWarning, match="taken for two heads"):
        theirs = call("lstm", Params(*params))
    assert_bitwise_equal(ours, theirs)
    both = some(MultiHeadParams, 2, 3)  # directions, then heads
    ours = call("lstm", both, bidirectional=True)
    assert_bitwise_equal(ours, call("lstm", Params(*both), bidirectional=True))


@pytest.mark.parametrize("cell", ["lstm", "rnn"])
@pytest.mark.parametrize("call", [*CALLS, recurrence], ids=lambda call: call.__name__)
def test_an_axis_of_two_without_a_name_is_a_warning(call, cell):
    says = r"w_hh \[2, 4, .*two heads.*bidirectional=True.*(MultiHeadParams|heads=2)"
    with pytest.warns(UserWarning, match=says) as caught:
        call(cell, some(Params, 2, cell=cell))
    assert {one.filename for one in caught} == {__file__}  # where the call is


@pytest.mark.filterwarnings("error")
def test_nothing_else_is_a_warning():
    layer("lstm", some(Params))
    layer("lstm", some(Params, 3))
    layer("lstm", some(Params, 2), bidirectional=True)
    layer("lstm", some(Params, 2, 2), bidirectional=True)
    square = some(Params, 2, size=HIDDEN)
    x = jnp.ones((BATCH, TIME, HIDDEN))
    prnn_jax.stack("lstm", x, [Layer(square, stacked=True)])  # an axis of layers
    ensemble = some(Params, 2)
    jax.vmap(functools.partial(layer, "lstm"))(ensemble)


def test_it_warns_once_for_a_place():
    params = some(Params, 2)
    step = jax.jit(functools.partial(layer, "lstm"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            prnn_jax.lstm(X, params)
        prnn_jax.lstm(X, params)
        jax.jit(prnn_jax.lstm)(X, params)  # through JAX: the place is here
        step(params)
    places = [(one.filename, one.lineno) for one in caught]
    assert len(set(places)) == len(places) == 4
    assert {name for name, _ in places} == {__file__}


@pytest.mark.filterwarnings("error")
def test_recurrence_is_told_its_heads():
    params = some(Params, 2)
    with pytest.warns(UserWarning, match="heads=2 if it is not"):
        theirs = recurrence("lstm", params)
    assert_bitwise_equal(recurrence("lstm", params, heads=2), theirs)
    with raises(
        "w_hh must have an axis of heads=3 before its last two, got [2, 4, 16]"
    ):
        recurrence("lstm", params, heads=3)
    with raises("w_hh must have an axis of heads=2", "got [2, 4, 16]"):
        recurrence("lstm", params, heads=2, bidirectional=True)
    with raises("w_hh must have an axis of heads=1", "got [4, 16]"):
        recurrence("lstm", some(Params), heads=1)


def test_a_part_of_params_is_what_its_shape_says():
    """A direction or a head, cut out or under `vmap`, is no longer several."""
    whole, x = some(BidirectionalParams, 2), jnp.asarray(X)
    forward = jax.tree.map(lambda a: a[0], whole)
    y = prnn_jax.lstm(x, Params(*forward))[0]
    assert_bitwise_equal(prnn_jax.lstm(x, forward)[0], y)
    for kind in KINDS:
        each = jax.vmap(lambda p: prnn_jax.lstm(x, p)[0])(kind(*whole))
        assert each.shape == (2, *y.shape)
        arrays = jax.vmap(functools.partial(convert.to_linen, "LSTMCell"))(kind(*whole))
        assert arrays["ii"]["kernel"].shape == (2, IN, HIDDEN)
    heads = jax.tree.map(lambda a: a[0], some(BidirectionalParams, 2, 3))
    assert_bitwise_equal(
        prnn_jax.lstm(x, heads)[0], prnn_jax.lstm(x, Params(*heads))[0]
    )


@pytest.mark.parametrize("count", [3, 10])  # one by one, and in a loop
def test_stacks_of_directions(count):
    wide = 2 * HIDDEN
    layers = [some(BidirectionalParams, 2, size=wide) for _ in range(count)]
    x = jnp.tile(X, 3)[..., :wide]
    y, _ = prnn_jax.stack("lstm", x, layers, bidirectional=True)
    plain = [Params(*params) for params in layers]
    assert_bitwise_equal(y, prnn_jax.stack("lstm", x, plain, bidirectional=True)[0])
    whole = Layer(jax.tree.map(lambda *a: jnp.stack(a), *layers), stacked=True)
    assert_bitwise_equal(y, prnn_jax.stack("lstm", x, [whole], bidirectional=True)[0])
    with raises("stack, layer 0: params are BidirectionalParams"):
        prnn_jax.stack("lstm", x, [whole])


# ---- who gives them ------------------------------------------------------------------

LEADS = {
    Params: {},
    BidirectionalParams: {"bidirectional": True},
    MultiHeadParams: {"heads": 2},
}


@pytest.mark.parametrize("kind", KINDS)
def test_layers_give_them(kind):
    from flax import nnx

    options, key = LEADS[kind], jax.random.key(0)
    bidirectional = kind is BidirectionalParams
    layers = [
        prnn_jax.equinox.RNN(IN, HIDDEN, key=key, **options),
        prnn_jax.nnx.RNN(IN, HIDDEN, rngs=nnx.Rngs(0), **options),
    ]
    for one in layers:
        params = one.params
        assert type(params) is kind
        cell = "rnn"
        y = getattr(prnn_jax, cell)(X, params, bidirectional=bidirectional)[0]
        theirs = one(X)
        theirs = theirs[0] if isinstance(theirs, tuple) else theirs
        assert_bitwise_equal(y, theirs)
        packed = prnn_jax.prepare(
            cell, params, batch=1, time=1, bidirectional=bidirectional
        )
        assert type(packed.params) is kind


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("options", LEADS.values(), ids=str)
def test_linen_s_layers_say_it_too(options):
    module = prnn_jax.linen.LSTM(HIDDEN, **options)
    module.init_with_output(jax.random.key(0), jnp.asarray(X))


def test_both_directions_and_heads_are_directions_first():
    layer = prnn_jax.equinox.LSTM(
        IN, HIDDEN, heads=2, bidirectional=True, key=jax.random.key(0)
    )
    assert type(layer.params) is BidirectionalParams
    sides = convert.split_directions(layer.params)
    assert [type(side) for side in sides] == [MultiHeadParams] * 2
    back = convert.stack_directions(*sides)
    assert type(back) is BidirectionalParams
    assert_bitwise_equal(back, layer.params)


DIRECTIONS = {
    "pytorch": ("LSTM", "lstm"),
    "keras": ("SimpleRNN", "rnn"),
    "onnx": ("RNN", "rnn"),
}


@pytest.mark.parametrize("library", DIRECTIONS)
def test_converters_give_and_take_them(library):
    name, cell = DIRECTIONS[library]
    write = getattr(convert, f"to_{library}")
    read = getattr(convert, f"from_{library}")
    for kind, lead in ((Params, ()), (BidirectionalParams, (2,))):
        arrays = write(name, some(kind, *lead, cell=cell))
        plain = write(name, some(Params, *lead, cell=cell))
        assert_bitwise_equal(arrays, plain)
        back = read(name, arrays)
        (back,) = back if library == "pytorch" else (back,)
        assert type(back) is kind
    with raises(
        f"to_{library}: params must be of a layer without heads",
        "got MultiHeadParams, w_hh [2, 4, ",
        "prnn_jax.BidirectionalParams(*params)",
    ):
        write(name, some(MultiHeadParams, 2, cell=cell))


@pytest.mark.parametrize(
    "write", [convert.to_linen, convert.to_nnx, convert.to_haiku, convert.to_equinox]
)
def test_cells_have_no_heads(write):
    name = "LSTM" if write is convert.to_haiku else "LSTMCell"
    with raises(f"{write.__name__}: params must be of a layer without heads"):
        write(name, some(MultiHeadParams, 2))
    with raises(f"{write.__name__}: w_hh must be", "one direction", "split_directions"):
        write(name, some(BidirectionalParams, 2))


def test_directions_of_directions():
    one, two = some(Params), some(BidirectionalParams, 2)
    for sides, which in (((two, two), "forward"), ((one, two), "backward")):
        with raises(f"stack_directions: {which} must be of one direction, got Bidir"):
            convert.stack_directions(*sides)
    with raises("split_directions", "got MultiHeadParams, w_hh [2, 4, 16]"):
        convert.split_directions(some(MultiHeadParams, 2))
    forward, backward = convert.split_directions(two)
    assert type(forward) is type(backward) is Params
    # A direction cut out by hand bears the name of both still.
    cut = jax.tree.map(lambda a: a[0], two)
    both = convert.stack_directions(cut, backward)
    assert type(both) is BidirectionalParams
    assert_bitwise_equal(both.w_hh[0], two.w_hh[0])


# ---- they are namedtuples and pytrees ------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_trees_keep_the_type(kind):
    params = some(kind, 2)._replace(b_hh=None)
    assert type(params) is kind
    doubled = jax.tree.map(lambda a: 2 * a, params)
    assert type(doubled) is kind
    assert doubled.b_hh is None
    assert type(jax.jit(lambda p: p)(params)) is kind
    assert type(jax.grad(lambda p: jnp.sum(p.w_hh))(params)) is kind
    assert type(jax.vmap(lambda p: p)(params)) is kind
    assert len(jax.tree.leaves(params)) == 3
    paths = [jax.tree_util.keystr(p) for p, _ in jax.tree.leaves_with_path(params)]
    assert paths == [".w_ih", ".w_hh", ".b_ih"]
    back = pickle.loads(pickle.dumps(params))
    assert type(back) is kind
    assert_bitwise_equal(back, params)
    assert params._asdict().keys() == set(Params._fields)
    assert repr(params).startswith(f"{kind.__name__}(w_ih=")
    assert not hasattr(params, "__dict__") or kind is Params


@pytest.mark.parametrize("kind", KINDS)
def test_programs_with_them_are_stored(kind):
    pytest.importorskip("flatbuffers")
    params, both = some(kind, 2), kind is BidirectionalParams
    warn = "error" if kind is not Params else "ignore"

    def run(params):
        y, _ = prnn_jax.lstm(jnp.asarray(X), params, bidirectional=both)
        return y, params

    with warnings.catch_warnings():
        warnings.simplefilter(warn)
        checks = prnn_jax.export_checks()
        made = export.export(jax.jit(run), disabled_checks=checks)(params)
        program = export.deserialize(made.serialize())
        y, back = program.call(params)
        assert type(back) is kind
        assert_bitwise_equal(y, jax.jit(run)(params)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_checkpoints_find_their_way(kind):
    from flax import serialization

    params = some(kind, 2)
    state = serialization.to_state_dict(params)
    assert set(state) == set(Params._fields)
    back = serialization.from_state_dict(jax.tree.map(jnp.zeros_like, params), state)
    assert type(back) is kind
    assert_bitwise_equal(back, params)
