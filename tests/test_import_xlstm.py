"""import_xlstm: against what the packages' own layers compute of the same arrays.

`COMPUTED` is y of xlstm 2.0.6 (sLSTMLayer, backend "vanilla", float32), of tirex-ts
1.4.2 (its cell told to be float32 instead of bfloat16) and of tirex-2 0.4.0
(sLSTMFlashRNNLayer, likewise), at the last step of the second row.
"""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from prnn_jax.convert import import_xlstm, to_xlstm

HEADS, HEAD, WIDTH = 3, 4, 4
FEATURES = HEADS * HEAD
X = np.random.default_rng(1).normal(size=(2, 7, FEATURES)).astype(np.float32)
SHAPES = {
    **{f"{gate}gate.weight": (HEADS, HEAD, HEAD) for gate in "fizo"},
    "slstm_cell._bias_": (4 * FEATURES,),
    "slstm_cell._recurrent_kernel_": (HEADS, 4 * HEAD, HEAD),
    "group_norm.weight": (FEATURES,),
}
CONV = {"conv1d.conv.weight": (FEATURES, 1, WIDTH), "conv1d.conv.bias": (FEATURES,)}
TIREX = {"slstm_cell._recurrent_kernel_": (HEADS, HEAD, 4 * HEAD)}
TIREX_2 = {
    **{key: shape for key, shape in SHAPES.items() if "cell" not in key},
    "_bias_": (HEADS, 4, HEAD),
    "_recurrent_kernel_": (HEADS, HEAD, 4, HEAD),
}
KINDS = {"plain": SHAPES, "conv": SHAPES | CONV}
KINDS |= {"tirex": SHAPES | TIREX, "tirex_2": TIREX_2}
BACKENDS = {"tirex": "cuda", "tirex_2": "flashrnn"}
# fmt: off
COMPUTED = {
    "conv": [0.0851147, -1.32461, 1.05454, 0.320293, -0.161861, -0.372992,
             -1.49765, 1.00495, 2.29185, 0.589617, -1.92906, -0.65788],
    "plain": [-3.27501, 1.2172, 0.615321, 0.184688, 0.0490951, -0.534788,
              -0.425824, 1.85642, 1.63042, -0.326222, -0.581696, 0.218106],
    "tirex": [-0.302076, 2.00295, 0.549104, -0.599826, 0.537218, -1.12729,
              -0.376304, 1.63811, -0.73795, -0.20013, -0.371593, 1.11531],
    "tirex_2": [0.25802, 0.497578, -0.318889, 0.787294, 0.502403, 0.0431949,
                0.511829, -0.173611, 0.172254, -0.0567967, 0.0068064, 0.653458],
}
# fmt: on


def arrays_of(kind: str, prefix: str = "") -> dict[str, torch.Tensor]:
    """The same draws as those of which `COMPUTED` was made."""
    rng, shapes = np.random.default_rng(0), KINDS[kind]
    return {
        f"{prefix}{key}": torch.tensor(0.5 * rng.normal(size=shapes[key])).float()
        for key in sorted(shapes)
    }


def module_of(kind: str, **config) -> torch.nn.Module:
    """A module with such arrays, inside of another, as an xLSTM has it."""
    root = torch.nn.Module()
    for key, value in arrays_of(kind, "blocks.1.xlstm.").items():
        module, (*path, name) = root, key.split(".")
        for part in path:
            if not hasattr(module, part):
                module.add_module(part, torch.nn.Module())
            module = getattr(module, part)
        module.register_parameter(name, torch.nn.Parameter(value))
    root.get_submodule("blocks.1.xlstm").config = SimpleNamespace(**config)
    return root


def close(ours, theirs):
    np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_computes_what_the_package_does(kind):
    layer = import_xlstm(arrays_of(kind))
    y, (before, cell) = jax.jit(lambda layer, x: layer(x))(layer, X)
    np.testing.assert_allclose(y[1, -1], COMPUTED[kind], rtol=1e-5, atol=1e-6)
    assert [part.shape for part in cell] == [(2, FEATURES)] * 4
    if kind == "conv":
        close(before, X[:, 1 - WIDTH :])
    else:
        assert before is None


@pytest.mark.parametrize("kind", ["plain", "conv"])
def test_goes_on_where_it_stopped(kind):
    layer = import_xlstm(arrays_of(kind))
    whole, last = layer(X)
    state, parts = None, []
    for part in np.split(X, [1, 3, 5], 1):  # shorter than the convolution, too
        y, state = layer(part, state)
        parts.append(y)
    close(jnp.concatenate(parts, 1), whole)
    jax.tree.map(close, state, last)


def test_lengths_keep_the_state_of_the_last_step():
    layer = import_xlstm(arrays_of("conv"))
    state = layer(X, lengths=jnp.array([2, 7]))[1]
    for row, length in enumerate((2, 7)):
        alone = layer(X[row, :length])[1]
        jax.tree.map(lambda a, b, row=row: close(a[row], b), state, alone)


@pytest.mark.parametrize("by", ["lengths", "mask"])
def test_what_does_not_count_reaches_nothing(by):
    layer = import_xlstm(arrays_of("conv"))
    counts = np.arange(7) < np.array([[7], [3]])
    if by == "mask":
        counts = np.array([[0, 0, 1, 1, 1, 1, 1], [1, 0, 1, 0, 1, 0, 1]], bool)
    given = {"lengths": np.array([7, 3])} if by == "lengths" else {"mask": counts}

    def loss(layer, x):
        y, state = layer(x, **given)
        return (y**2).sum() + sum((s**2).sum() for s in jax.tree.leaves(state)), y

    of_x = jax.jit(jax.grad(loss, (0, 1), has_aux=True))
    clean, holes = (np.where(counts[..., None], X, other) for other in (0, np.nan))
    jax.tree.map(np.testing.assert_array_equal, of_x(layer, holes), of_x(layer, clean))
    (_, dx), y = of_x(layer, holes)
    assert (dx[~counts] == 0).all()
    for row in range(2):  # the convolution sees the steps that count alone
        alone = layer(X[row][counts[row]])[0]
        close(y[row][counts[row]], alone)


def test_a_reset_begins_anew():
    layer = import_xlstm(arrays_of("conv"))
    resets = np.zeros((2, 7), int)
    resets[0, 3] = resets[1, 0] = resets[1, 6] = 1
    before = layer(X)[1]
    y, state = layer(X, before, resets=resets)
    close(y[0, :3], layer(X[:, :3], before)[0][0])
    close(y[0, 3:], layer(X[0, 3:])[0])
    close(y[1, :6], layer(X[1, :6])[0])
    close(y[1, 6:], layer(X[1, 6:])[0])
    of_row = [layer(X[0, 3:])[1], layer(X[1, 6:])[1]]
    for row, wanted in enumerate(of_row):
        jax.tree.map(lambda a, b, row=row: close(a[row], b), state, wanted)
    with pytest.raises(
        ValueError, match=r"resets must be \[\*batch, time\] = \[2, 7\]"
    ):
        layer(X, resets=resets[0])


def test_lengths_that_cannot_be():
    layer = import_xlstm(arrays_of("conv"))
    for lengths, message in (([2, 8], "got 8"), ([2], "lengths must be")):
        with pytest.raises(ValueError, match=message):
            layer(X, lengths=np.array(lengths))
    traced = jax.jit(lambda n: layer(X, lengths=n)[1])(np.array([250, 3], np.uint8))
    jax.tree.map(close, traced, layer(X, lengths=np.array([7, 3]))[1])


def test_gradients_are_those_of_the_scan():
    layer = import_xlstm(arrays_of("conv"))

    def loss(layer, implementation):
        return (layer(X, implementation=implementation)[0] ** 3).sum()

    ours, theirs = (jax.grad(loss)(layer, by) for by in (None, "scan"))
    assert jax.tree.structure(ours) == jax.tree.structure(layer)
    for a, b in zip(*map(jax.tree.leaves, (ours, theirs)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * abs(b).max())
        assert abs(b).max() > 1e-3


def test_a_module_and_a_file(tmp_path):
    model = module_of("conv", function="slstm", num_heads=HEADS)
    torch.save({"state_dict": model.state_dict()}, tmp_path / "model.pt")
    layer = import_xlstm(model)
    assert layer.name == "blocks.1.xlstm"
    of_file = import_xlstm(str(tmp_path / "model.pt"))
    assert of_file.name == "state_dict.blocks.1.xlstm"
    of_arrays = import_xlstm(arrays_of("conv"))
    for a, b, c in zip(*map(jax.tree.leaves, (layer, of_file, of_arrays)), strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)


@pytest.mark.parametrize("kind", KINDS)
def test_there_and_back(kind):
    arrays = arrays_of(kind)
    layer = import_xlstm(arrays)
    back = to_xlstm(layer, BACKENDS.get(kind, "vanilla"))
    if kind == "tirex_2":  # which has one tensor by two names
        np.testing.assert_array_equal(
            back.pop("recurrent_kernel"), back["_recurrent_kernel_"]
        )
    assert back.keys() == arrays.keys()
    for key, value in arrays.items():
        np.testing.assert_allclose(back[key], value, rtol=0, atol=1e-7, err_msg=key)
    others = {"tirex": "vanilla", "tirex_2": None}
    other = import_xlstm(to_xlstm(layer, others.get(kind, "cuda")))
    for a, b in zip(*map(jax.tree.leaves, (other, layer)), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-7)


def test_what_is_no_layer():
    with pytest.raises(ValueError, match="layer must be a SlstmLayer, got dict"):
        to_xlstm(arrays_of("plain"))
    with pytest.raises(ValueError, match="backend must be"):
        to_xlstm(import_xlstm(arrays_of("plain")), "triton")
    with pytest.raises(ValueError, match=r"epsilon must be 1e-06 for .* got 1e-05"):
        to_xlstm(import_xlstm(arrays_of("plain")), "flashrnn")


def test_a_name_says_which():
    both = arrays_of("plain", "a.") | arrays_of("conv", "b.")
    assert import_xlstm(both, "a").kernel is None
    assert import_xlstm(both, "b").kernel.shape == (WIDTH, FEATURES)
    with pytest.raises(ValueError, match=r"name must say which .* one of 'a', 'b'"):
        import_xlstm(both)
    with pytest.raises(ValueError, match="name must be one of 'a', 'b', got 'c'"):
        import_xlstm(both, "c")


def test_arrays_of_two_dtypes_become_one():
    arrays = arrays_of("plain")
    key = "slstm_cell._recurrent_kernel_"
    arrays[key] = arrays[key].bfloat16()
    layer = import_xlstm(arrays)
    assert {leaf.dtype for leaf in jax.tree.leaves(layer)} == {jnp.dtype("float32")}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"slstm_cell._recurrent_kernel_": None}, "must have an sLSTM layer"),
        ({"slstm_cell._recurrent_kernel_": ()}, r"\[heads, head, 4\*head\].*got \[\]"),
        ({"zgate.weight": None}, "must have all arrays .* lacks zgate.weight"),
        ({"slstm_cell._recurrent_kernel_": (3, 4, 12)}, r"got \[3, 4, 12\]"),
        ({"ogate.weight": (3, 4, 5)}, r": ogate.weight must be .* \[3, 4, 4\], got"),
        ({"conv1d.conv.weight": (12, 12, 4)}, r"must be .* \[12, 1, 4\], got"),
        (
            {"group_norm.weight": (4,)},
            r"group_norm.* must be .* \[12\], got \[4\]",
        ),
    ],
)
def test_arrays_that_do_not_fit(change, message):
    arrays = arrays_of("conv")
    for key, shape in change.items():
        arrays[key] = None if shape is None else torch.zeros(shape)
    arrays = {key: value for key, value in arrays.items() if value is not None}
    with pytest.raises(ValueError, match=message):
        import_xlstm(arrays)


def test_what_is_no_model():
    with pytest.raises(ValueError, match=r"model must be .* a module, a state_dict"):
        import_xlstm(3)
    double = {key: value.double() for key, value in arrays_of("plain").items()}
    with pytest.raises(ValueError, match="is float64, which JAX has with"):
        import_xlstm(double)


@pytest.mark.parametrize(
    "config", [{"function": "lstm"}, {"forward_clipval": 1.0}, {"initial_val": [1.0]}]
)
def test_what_a_module_computes_otherwise(config):
    (option,) = config
    with pytest.raises(ValueError, match=f"must have {option}="):
        import_xlstm(module_of("plain", **config))


def test_inputs_that_do_not_fit():
    layer = import_xlstm(arrays_of("conv"))
    with pytest.raises(ValueError, match="x must be"):
        layer(X[..., :5])
    with pytest.raises(ValueError, match="must have the same dtype"):
        layer(X.astype(np.float16))
    with pytest.raises(ValueError, match=r"state_0\[0\] must be"):
        layer(X, (X, layer(X)[1][1]))
