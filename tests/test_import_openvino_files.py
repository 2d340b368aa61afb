"""Files of OpenVINO that are damaged, or of something else, and what is refused."""

import random as python_random
import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from libraries import library
from openvino_support import (
    BATCH,
    HIDDEN,
    IN,
    TIME,
    Case,
    model_of,
    operators,
    parameter,
    sequence,
)
from openvino_support import random as drawn
from test_import_openvino_loops import cell_of, looped, states_of, written

from prnn_jax.convert import import_openvino
from prnn_jax.convert._openvino import numbers


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A file of an LSTM."""
    openvino = library("openvino")
    x = parameter((3, TIME, IN), "x")
    model = model_of([sequence(Case(""), x).output(0)], [x])
    path = tmp_path_factory.mktemp("model") / "model.xml"
    openvino.serialize(model, path, path.with_suffix(".bin"))
    return path


def copied(made: Path, folder: Path, old: str = "", new: str = "") -> Path:
    """The file, with the first of some words changed."""
    text = made.read_text()
    assert old in text
    path = folder / "model.xml"
    path.write_text(text.replace(old, new, 1) if old else text)
    path.with_suffix(".bin").write_bytes(made.with_suffix(".bin").read_bytes())
    return path


def test_a_path_may_be_a_string(made):
    one, other = import_openvino(str(made)), import_openvino(made)
    np.testing.assert_array_equal(one.layers[0].w_hh, other.layers[0].w_hh)


BOMB = """<?xml version="1.0"?>
<!DOCTYPE net [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;&a;">]>
<net name="&b;" version="11"><layers></layers></net>"""


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (BOMB, "it has a DOCTYPE, which no model has and which is not read"),
        (BOMB.encode("utf-16"), "it has a DOCTYPE"),
        ("", "ExpatError: "),
        ("<net version='11'><layers>", "ExpatError: "),
        ("<svg/>", "it has no <net> with <layers>, but <svg>"),
        ("<net version='11'/>", "it has no <net> with <layers>"),
        ("<net version='7'><layers/></net>", "of 2019 or before; convert the model"),
        ("<net version='x'><layers/></net>", "its version is 'x', and no number"),
        ("<a>" * 300 + "</a>" * 300, "more than 200 elements are inside"),
    ],
    ids=range(9),
)
def test_what_is_no_model(text, match, tmp_path):
    data = text if isinstance(text, bytes) else text.encode()
    (path := tmp_path / "model.xml").write_bytes(data)
    path.with_suffix(".bin").write_bytes(b"")
    with pytest.raises(ValueError, match="must be a whole model of OpenVINO") as raised:
        import_openvino(path)
    assert match in str(raised.value)


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ('offset="0"', 'offset="99999999"', "of a .bin file of"),
        ('offset="0"', 'offset="-8"', "of a .bin file of"),
        ('offset="0"', 'offset="1e3"', "and no number"),
        ('size="', 'size="-', "of a .bin file of"),
        ('shape="1, 24, 5"', 'shape="1, 24, 5000"', "of f32 in"),
        ('shape="1, 24, 5"', 'shape="1, -24, 5"', "of sizes"),
        ('from-port="0"', 'from-port="7"', "an edge is from "),
        ('direction="forward"', 'direction="sideways"', "has the direction 'sideways'"),
        ('hidden_size="6"', 'hidden_size="x"', "and no number"),
        ('hidden_size="6"', 'hidden_size="7"', "hidden_size 7"),
        ('clip="0"', 'clip="-1"', ""),
        ('clip="0"', 'clip="zero"', "could not convert string to float"),
        ("sigmoid, tanh, tanh", "elu, tanh, tanh", "must have activations of relu, si"),
        ("sigmoid, tanh, tanh", "sigmoid, tanh", "must have 3 activations"),
        ('"LSTMSequence"', '"AUGRUSequence"', "must have a recurrent operator, of"),
        ('"f32" shape="1, 24, 5"', '"nf4" shape="1, 24, 5"', "W of the node"),
    ],
    ids=range(16),
)
def test_what_is_changed(old, new, match, made, tmp_path):
    path = copied(made, tmp_path, old, new)
    if not match:  # as OpenVINO has it: none
        assert import_openvino(path).clip is None
        return
    with pytest.raises(ValueError, match=re.escape(match)):
        import_openvino(path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("<data hidden_size", '<data weights_format="ifco" hidden_size'),
        ('auto_broadcast="numpy"', 'auto_broadcast="pdpd"'),
    ],
    ids=["gates", "broadcast"],
)
@pytest.mark.parametrize("is_loop", [False, True], ids=["", "loop"])
def test_what_is_of_another_kind_is_not_read(old, new, is_loop, tmp_path):
    openvino, case = library("openvino"), Case("")
    step = cell_of if "hidden_size" in old else written
    x, states = parameter((BATCH, IN), "x"), states_of(case)
    model = model_of(step(case, x, states), [x, *states])
    model = looped(case, step) if is_loop else model
    path = tmp_path / "model.xml"
    openvino.serialize(model, path, path.with_suffix(".bin"))
    import_openvino(path)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(ValueError, match="must have a recurrent operator"):
        import_openvino(path)


def test_peepholes_are_not_read(tmp_path):
    """Of an LSTMCell of the first operators, as no later one has them."""
    openvino, case = library("openvino"), Case("")
    x, states = parameter((BATCH, IN), "x"), states_of(case)
    p = parameter((3 * HIDDEN,), "p")
    model = model_of([*cell_of(case, x, states), p], [x, *states, p])
    path = tmp_path / "model.xml"
    openvino.serialize(model, path, path.with_suffix(".bin"))
    text = path.read_text()
    layer = re.search(r'<layer id="(\d+)"[^>]*type="LSTMCell".*?</layer>', text, re.S)
    of_p = re.search(r'<layer id="(\d+)" name="p" ', text)
    assert layer
    assert of_p
    more = layer[0].replace("</input>", '<port id="90"><dim>18</dim></port></input>')
    edge = f'<edge from-layer="{of_p[1]}" from-port="0" to-layer="{layer[1]}"'
    text = text.replace(layer[0], more)
    path.write_text(text.replace("<edges>", f'<edges>{edge} to-port="90"/>'))
    with pytest.raises(ValueError, match="must have a recurrent operator"):
        import_openvino(path)


def test_numbers_that_are_not_read_are_named(made, tmp_path):
    path = copied(made, tmp_path, '"LSTMSequence"', '"Other"')
    path.write_text(
        path.read_text().replace('"f32" shape="1, 24', '"nf4" shape="1, 24')
    )
    with pytest.raises(
        ValueError, match="of the element_type 'nf4', which is not read"
    ):
        import_openvino(path)


def test_weights_that_are_cut_off(made, tmp_path):
    path = copied(made, tmp_path)
    weights = path.with_suffix(".bin")
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"of a \.bin file of 100 bytes"):
        import_openvino(path)
    weights.unlink()
    with pytest.raises(FileNotFoundError, match=r"model\.bin"):
        import_openvino(path)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (
            3,
            "must be a path of an .xml file of OpenVINO, or an openvino.Model, got int",
        ),
        ("/", "must be the .xml file of a model, got a folder; name the .xml"),
        ("model.bin", "must be the .xml file of a model, got its weights"),
    ],
)
def test_what_is_no_path_of_a_model(given, match):
    with pytest.raises(ValueError, match=match):
        import_openvino(given)


def test_a_model_without_a_recurrence_is_refused():
    ops = operators()
    x = parameter((2, IN), "x")
    model = model_of([ops.relu(x)], [x])
    with pytest.raises(ValueError, match="must have a recurrent operator") as raised:
        import_openvino(model)
    assert "got Parameter, ReLU, Result." in str(raised.value)


def test_a_file_that_is_changed_anywhere_is_read_or_refused(made, tmp_path):
    """Nothing else than ValueError, which says what was met."""
    draw, text = python_random.Random(0), made.read_text()
    parts = re.split(r"(\w+|\W)", text)
    words = [n for n, part in enumerate(parts) if part.strip()]
    path = copied(made, tmp_path)
    messages = []
    for _ in range(150):
        changed = list(parts)
        for place in draw.sample(words, draw.choice((1, 1, 3))):
            other = changed[draw.choice(words)]
            changed[place] = draw.choice(("", other, other, "-1", "9" * 20))
        path.write_text("".join(changed))
        try:
            import_openvino(path)
        except ValueError as error:
            messages.append(str(error))
    assert 20 < len(messages) < 150
    assert not [one for one in messages if not one.startswith("import_openvino: ")]


# ---- numbers -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["f16", "f32", "f64", "i8", "u16", "i64", "boolean"])
def test_numbers_are_what_is_written(kind):
    dtype = {"boolean": "?"}.get(
        kind, f"{kind[0]}{int(kind[1:] or 8) // 8}" if kind != "boolean" else ""
    )
    wanted = (np.abs(drawn(3, 5)) * 8).astype(dtype)
    data = np.frombuffer(wanted.tobytes(), np.uint8)
    made = numbers.numbers(data, kind, (3, 5))
    np.testing.assert_array_equal(made, wanted)
    assert made.dtype in (np.float32, np.float64, np.int64, np.bool_)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("bf16", ml_dtypes.bfloat16),
        ("f8e4m3", ml_dtypes.float8_e4m3fn),
        ("f8e5m2", ml_dtypes.float8_e5m2),
    ],
)
def test_short_floats(kind, dtype):
    wanted = drawn(3, 5).astype(dtype)
    made = numbers.numbers(np.frombuffer(wanted.tobytes(), np.uint8), kind, (3, 5))
    np.testing.assert_array_equal(made, wanted.astype("f"))


@pytest.mark.parametrize(("kind", "numpy"), [("i4", "i1"), ("u4", "u1")])
def test_numbers_of_4_bits(kind, numpy):
    """As OpenVINO itself unpacks them, of a count that is odd."""
    openvino, ops = library("openvino"), operators()
    packed = np.arange(0, 256, 9, dtype=np.uint8)[:8]
    tensor = openvino.Tensor(packed, [3, 5], getattr(openvino.Type, kind))
    model = model_of([ops.convert(ops.constant(tensor), "f32")], [])
    compiled = openvino.Core().compile_model(model, "CPU")
    theirs = next(iter(compiled([]).values()))
    made = numbers.numbers(packed, kind, (3, 5))
    np.testing.assert_array_equal(made, theirs)
    assert (made.min() < 0) == (numpy == "i1")
