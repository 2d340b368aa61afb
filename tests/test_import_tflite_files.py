"""Files of LiteRT that are damaged, foreign or of something else."""

import sys

import numpy as np
import pytest
from test_import_tflite import (
    BATCH,
    BOTH_RNN,
    HIDDEN,
    IN,
    LSTM,
    TIME,
    Builder,
    Case,
    random,
)
from tflite_support import Graph, Quantized, file_of, interpreted, tflite

from prnn_jax.convert import import_tflite


def of_options(**options) -> bytes:
    return Builder(Case("one", options=options)).build()


def changed(tensor: str, **changes) -> bytes:
    """A file in which a tensor is another."""
    builder = Builder(Case("one"))
    builder.build()
    for name, value in changes.items():
        builder.graph.tensors[tensor][name] = value
    return file_of(builder.graph)


def with_input(place: int, array) -> bytes:
    """A file with one more constant."""
    builder = Builder(Case("one", projection=True))
    builder.build()
    builder.graph.operators[0][1][place] = builder.graph.constant("more", array)
    return file_of(builder.graph)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (of_options(FusedActivationFunction=0), "got NONE, of which LiteRT's LSTM"),
        (of_options(FusedActivationFunction=5), "RELU6, TANH, got 5"),
        (with_input(17, np.ones(4)), "no bias of its projection"),
        (
            Builder(Case("one", norm=True, projection=True)).build(),
            "has layer norm and a projection",
        ),
        (
            Builder(
                Case("one", norm=True, peepholes=True, options={"CellClip": 1.0})
            ).build(),
            "has layer norm and peepholes and clips",
        ),
        (changed("fwf", sparse=True), "'fwf', input 2 of the operator 'y'.*sparse"),
        (changed("fwf", kind=5), "of the dtype 5 of the schema"),
        (changed("fwf", data=None), "'fwf', input 2 .* must be constant"),
        (
            changed("fwf", kind=2),
            r"'fwf', input 2 .* or integers with a scale, got integers",
        ),
        (changed("fwc", shape=(HIDDEN, 1)), r"must be \[6, 5\], got \[6, 1\]"),
        (changed("fwf", shape=(IN, HIDDEN)), r"must be \[5, 6\], got \[6, 5\]"),
        (
            Builder(Case("one", BOTH_RNN, aux="input")).build(),
            "LiteRT's backward direction reads the wrong input",
        ),
        (
            Builder(Case("one", BOTH_RNN, aux="weights", time_major=True)).build(),
            "LiteRT's backward direction reads the wrong input",
        ),
    ],
)
def test_what_prnn_jax_has_not(data, words):
    with pytest.raises(ValueError, match=words):
        import_tflite(data)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "whose bytes 4 to 8 are TFL3, got b''"),
        (b"PK\x03\x04" + bytes(99), "It is a zip archive"),
        (b"LITERTLM" + bytes(99), "bundle has the .tflite files"),
        (b"\x08\x07" + bytes(99), "must be a .tflite file"),
        (bytes(4) + b"TFL3" + bytes(20), "damaged"),
    ],
)
def test_foreign_files(data, words):
    with pytest.raises(ValueError, match=words):
        import_tflite(data)


def test_damaged_files():
    """Whatever bytes are wrong, it is an error that says so, or another network."""
    data, random_numbers = of_options(), np.random.default_rng(0)
    refused = []
    for n in range(120):
        broken = bytearray(data)
        if n % 3:
            for place in random_numbers.integers(8, len(data), 3):
                broken[place] = random_numbers.integers(256)
        else:
            broken = broken[: random_numbers.integers(8, len(data))]
        try:
            import_tflite(bytes(broken))
        except ValueError as error:
            refused.append(str(error))
    assert len(refused) > 30
    assert all(one.startswith("import_tflite: ") for one in refused)


@pytest.mark.parametrize(
    ("kind", "missing"),
    [(LSTM, "inputs"), (LSTM, "outputs"), ("SPLIT", "inputs"), ("TANH", "outputs")],
)
def test_operators_without_inputs_or_outputs(kind, missing):
    graph = Graph(inputs=["x"], outputs=["x"])
    graph.value("x", 2, 3)
    given = {"inputs": ["x"], "outputs": ["x"], missing: []}
    graph.add(kind, *given.values())
    words = "damaged" if missing == "inputs" else "must have a recurrent operator"
    with pytest.raises(ValueError, match=words):
        import_tflite(file_of(graph))


@pytest.mark.parametrize("kind", ["ADD", "RESHAPE"])
def test_operators_that_read_what_they_make(kind):
    """LiteRT runs them in order; a search for what a value is of would not end."""
    builder = Builder(Case("one"))
    builder.build()
    graph = builder.graph
    graph.value("z", BATCH, TIME, HIDDEN)
    graph.value("w", BATCH, TIME, HIDDEN)
    graph.add(kind, ["z", graph.constant("other", np.ones(1))], ["z"])
    graph.add("MUL", ["y", "z"], ["w"])
    with pytest.raises(ValueError, match=rf"damaged.*read before {kind} makes them"):
        import_tflite(file_of(graph))


def test_a_sum_of_one():
    graph = Graph(inputs=["x"], outputs=["y"])
    for name in ("x", "sum", "a", "y"):
        graph.value(name, 3, 3)
    graph.add("ADD", ["x"], ["sum"])
    graph.add("FULLY_CONNECTED", ["sum", graph.constant("w", np.eye(3))], ["a"])
    graph.add("TANH", ["a"], ["y"])
    with pytest.raises(ValueError, match=r"damaged.*Add of 1 inputs, 1 outputs"):
        import_tflite(file_of(graph))


def test_the_number_says_what_an_operator_is():
    """And not a name beside it, which a custom one alone has."""
    builder = Builder(Case("one"))
    data, x = builder.build(), random(BATCH, TIME, IN, seed=1)
    number = tflite.BuiltinOperator.UNIDIRECTIONAL_SEQUENCE_LSTM
    named = file_of(builder.graph, marked={LSTM: (number, "")})
    np.testing.assert_array_equal(interpreted(named, x)[0], interpreted(data, x)[0])
    assert import_tflite(named).cell == "lstm"
    number = tflite.BuiltinOperator.CUSTOM
    custom = file_of(builder.graph, marked={LSTM: (number, LSTM)})
    with pytest.raises(ValueError, match=f"got CUSTOM {LSTM}"):
        import_tflite(custom)


def test_more_axes_than_there_can_be():
    with pytest.raises(ValueError, match=r"damaged.*99 axes of fwf"):
        import_tflite(changed("fwf", shape=(1,) * 99))


def test_what_is_no_file(tmp_path):
    with pytest.raises(ValueError, match="must be a path of a"):
        import_tflite(3)
    with pytest.raises(ValueError, match="got a folder"):
        import_tflite(tmp_path)
    with pytest.raises(FileNotFoundError):
        import_tflite(tmp_path / "none.tflite")
    (tmp_path / "model.tflite").write_bytes(of_options())
    assert import_tflite(tmp_path / "model.tflite").name == "y"


@pytest.mark.parametrize("package", ["tflite", "onnx"])
def test_a_missing_package(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match="pip install tflite onnx"):
        import_tflite(of_options())


def test_no_recurrent_operator():
    graph = Graph(inputs=["x"], outputs=["y"])
    graph.value("x", 2, 3)
    graph.value("y", 2, 3)
    graph.add("TANH", ["x"], ["y"])
    graph.value("z", 2, 3)
    graph.add("MyOwn", ["x"], ["z"])
    with pytest.raises(
        ValueError, match=r"have a recurrent operator.*, got MyOwn, TANH"
    ):
        import_tflite(file_of(graph))


# ---- several -------------------------------------------------------------------------


def two(between: str = "") -> Graph:
    """Two layers, with nothing, an addition or a reversal between them."""
    builder = Builder(Case("one"))
    builder.build()
    graph = builder.graph
    graph.value("y2", BATCH, TIME, HIDDEN)
    source = "y"
    if between:
        source = graph.value("between", BATCH, TIME, HIDDEN)
        other = np.array([1], "i4") if between == "REVERSE_V2" else np.ones(1)
        graph.add(between, ["y", graph.constant("other", other)], [source])
    inputs = list(graph.operators[0][1])
    inputs[0] = source
    for n in range(1, 5):
        inputs[n] = graph.constant(f"w2_{n}", random(HIDDEN, HIDDEN, seed=n))
    inputs[18:20] = [
        graph.value(name, BATCH, HIDDEN, variable=True) for name in ("h2", "c2")
    ]
    _, _, _, table, options = graph.operators[0]
    graph.add(LSTM, inputs, ["y2"], table, **options)
    graph.outputs = ["y2"]
    return graph


def test_layers_that_follow_one_another():
    data, x = file_of(two()), random(BATCH, TIME, IN, seed=1)
    net = import_tflite(data)
    assert net.places == ("y", "y2")
    # Of sums of some 10 numbers below 1 in float32, by both.
    np.testing.assert_allclose(net(x)[0], interpreted(data, x)[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("between", ["ADD", "REVERSE_V2"])
def test_a_name_says_which(between):
    data, x = file_of(two(between)), random(BATCH, TIME, IN, seed=1)
    listed = r"'y' \(LSTM\), 'y2' \(LSTM\)"
    with pytest.raises(ValueError, match=f"name must say which.*{listed}"):
        import_tflite(data)
    with pytest.raises(ValueError, match=f"name must be of {listed}, got 'z'"):
        import_tflite(data, "z")
    first, second = import_tflite(data, "y"), import_tflite(data, "y2")
    y = np.asarray(first(x)[0])
    y = y + 1 if between == "ADD" else y[:, ::-1]
    made = second(y)[0]
    np.testing.assert_allclose(made, interpreted(data, x)[0], rtol=0, atol=1e-6)


def two_directions(case: Case, turned: int) -> bytes:
    """Two operators, one of which reads x from the end of an axis."""
    builder = Builder(case)
    builder.build()
    graph = builder.graph
    graph.value("turned", *case.rows(IN))
    graph.value("back", *case.rows(HIDDEN))
    graph.value("turned_back", *case.rows(HIDDEN))
    graph.value("both", *case.rows(2 * HIDDEN))
    axis = graph.constant("axis", np.array([turned], "i4"))
    inputs = list(graph.operators[0][1])
    inputs[0] = "turned"
    inputs[5] = graph.constant("other", random(HIDDEN, HIDDEN, seed=8))
    inputs[18:20] = [
        graph.value(name, BATCH, HIDDEN, variable=True) for name in ("h2", "c2")
    ]
    _, _, _, table, options = graph.operators[0]
    graph.add("REVERSE_V2", ["x", axis], ["turned"])
    graph.add(LSTM, inputs, ["back"], table, **options)
    graph.add("REVERSE_V2", ["back", axis], ["turned_back"])
    graph.add(
        "CONCATENATION", ["y", "turned_back"], ["both"], "ConcatenationOptions", Axis=2
    )
    graph.outputs = ["both"]
    return file_of(graph)


@pytest.mark.parametrize("time_major", [False, True])
def test_directions_of_two_operators(time_major):
    """So Keras' Bidirectional is converted, of which one reads x from its end."""
    case = Case("one", time_major=time_major)
    data = two_directions(case, 0 if time_major else 1)
    x = random(*case.rows(IN), seed=1)
    net = import_tflite(data)
    assert net.bidirectional
    assert net.places == ("y", "back")
    np.testing.assert_allclose(net(x)[0], interpreted(data, x)[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("time_major", [False, True])
def test_a_batch_from_its_end_is_no_direction(time_major):
    data = two_directions(Case("one", time_major=time_major), 1 if time_major else 0)
    with pytest.raises(ValueError, match=r"must say which.*'y' \(LSTM\), 'back'"):
        import_tflite(data)


@pytest.mark.parametrize("with_another", [True, False])
def test_branches_are_graphs_of_their_own(with_another):
    """Else a network would be imported as if it were all that there is."""
    branches = []
    for n in range(2):
        builder = Builder(Case("one"))
        builder.build()
        builder.graph.name = f"branch_{n}"
        branches.append(builder.graph)
    graph = Graph(inputs=["x"])
    graph.value("x", BATCH, TIME, IN)
    if with_another:
        builder = Builder(Case("one"))
        builder.build()
        graph = builder.graph
    which = graph.constant("which", np.array(True))
    graph.value("of_if", BATCH, TIME, HIDDEN)
    places = {"ThenSubgraphIndex": 1, "ElseSubgraphIndex": 2}
    graph.add("IF", [which, "x"], ["of_if"], "IfOptions", **places)
    graph.outputs = ["of_if"]
    data = file_of(graph, *branches)
    with pytest.raises(ValueError, match=r"must say which.*'y' \(LSTM\), 'y#1'"):
        import_tflite(data)
    assert import_tflite(data, "y#1").name == "y#1"


# ---- one step ------------------------------------------------------------------------


def test_an_operator_of_one_step():
    graph = Graph(inputs=["x"], outputs=["y"])
    graph.value("x", BATCH, IN)
    graph.value("y", BATCH, HIDDEN)
    graph.value("h", BATCH, HIDDEN, variable=True)
    weights = [
        graph.constant("w", random(HIDDEN, IN)),
        graph.constant("r", random(HIDDEN, HIDDEN)),
        graph.constant("b", random(HIDDEN)),
    ]
    inputs = ["x", *weights, "h"]
    graph.add("RNN", inputs, ["y"], "RNNOptions", FusedActivationFunction=4)
    data, x = file_of(graph), random(BATCH, IN, seed=1)
    y, _ = import_tflite(data)(x[:, None])
    np.testing.assert_allclose(y[:, 0], interpreted(data, x)[0], rtol=0, atol=1e-6)


def test_the_basic_kernel_of_one_step():
    graph = Graph(inputs=["x", "h", "c"], outputs=["y", "c_n"])
    sizes = {"x": IN, "h": HIDDEN, "c": HIDDEN, "y": HIDDEN, "c_n": HIDDEN}
    sizes |= {"both": IN + HIDDEN, "gates": 4 * HIDDEN}
    for name, size in sizes.items():
        graph.value(name, BATCH, size)
    weights = [
        graph.constant("w", random(4 * HIDDEN, IN + HIDDEN)),
        graph.constant("b", random(4 * HIDDEN)),
    ]
    options = {"FusedActivationFunction": 4, "KernelType": 1}
    outputs = ["y", "c_n", "both", "gates"]
    graph.add("LSTM", ["x", "h", *weights, "c"], outputs, "LSTMOptions", **options)
    data = file_of(graph)
    x, h, c = (random(BATCH, sizes[name], seed=n) for n, name in enumerate("xhc"))
    y, ((_, c_n),) = import_tflite(data)(x[:, None], [(h, c)])
    want = interpreted(data, x, h, c)
    np.testing.assert_allclose(y[:, 0], want[0], rtol=0, atol=1e-6)
    np.testing.assert_allclose(c_n, want[1], rtol=0, atol=1e-6)


def test_int4_and_offsets_of_zero():
    """Two numbers in a byte, the lower half first; and a zero that is not 0."""
    numbers = np.random.default_rng(0).integers(-8, 8, (HIDDEN, IN))
    low, high = numbers.ravel()[::2] & 15, numbers.ravel()[1::2] & 15
    packed = (low | high << 4).astype("i1")
    scale = Quantized(packed, 0.1)
    data = changed("fwf", kind=17, data=packed.tobytes(), quantized=scale)
    f = np.asarray(import_tflite(data).layers[0].w_ih)[:, HIDDEN : 2 * HIDDEN]
    np.testing.assert_allclose(f, numbers.T * np.float32(0.1), rtol=1e-6)
    numbers = np.random.default_rng(0).integers(0, 256, (HIDDEN, IN)).astype("u1")
    scale = Quantized(numbers, 0.1, 7)
    data = changed("fwf", kind=3, data=numbers.tobytes(), quantized=scale)
    f = np.asarray(import_tflite(data).layers[0].w_ih)[:, HIDDEN : 2 * HIDDEN]
    wanted = (numbers.T.astype("f4") - 7) * np.float32(0.1)
    np.testing.assert_allclose(f, wanted, rtol=1e-6)
