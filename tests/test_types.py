"""Type checkers take what the calls take and the documentation shows."""

import inspect
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import prnn_jax.equinox
import prnn_jax.linen
import prnn_jax.nnx

PYRIGHT = shutil.which("pyright", path=Path(sys.executable).parent)
CODE = """
import jax
import jax.numpy as jnp
import numpy as np
import prnn_jax
import prnn_jax.linen
import prnn_jax.nnx
from flax import nnx
from jax import Array

x, p = jnp.ones((2, 5, 3)), prnn_jax.Params(jnp.ones((3, 16)), jnp.ones((4, 16)))
h = jnp.zeros((2, 4))
y: Array = prnn_jax.lstm(x, p, lengths=[1, 2])[0]
prnn_jax.lstm(x, p, lengths=np.array([1, 2]), resets=[[True] * 5] * 2)
prnn_jax.lstm(x[0], p, lengths=3)
prnn_jax.lstm(x, p, resets=np.zeros((2, 5), bool), zoneout=np.float32(0.1))
_, (h_n, c_n) = prnn_jax.lstm(np.ones((2, 5, 3), np.float32), p, [h, np.zeros((2, 4))])
prnn_jax.recurrence("lstm", np.ones((2, 5, 16)), p.w_hh, (h, h))
prnn_jax.stack("lstm", np.ones((2, 5, 3)), [p], [(h, h)], lengths=[1, 2])
prnn_jax.min_gru(x, jnp.ones((3, 8)), lengths=[1, 2], bidirectional=False)
prnn_jax.qrnn(x, np.ones((2, 3, 12), np.float32), mask=np.ones((2, 5)))[1][0]
of_linear = prnn_jax.init("min_gru", jax.random.key(0), 3, 4, bias=False)
prnn_jax.min_gru(x, **of_linear)
prnn_jax.stack("min_gru", x, [of_linear], activation="tanh")
w_hh: Array = prnn_jax.init("gru", jax.random.key(0), 3, 4, scheme="keras").w_hh
prnn_jax.nnx.Stack("min_gru", 3, 4, 2, norm=True, rngs=nnx.Rngs(0))(x)
prnn_jax.nnx.SRU(3, 4, peepholes=True, rngs=nnx.Rngs(0))(x, mask=np.ones((2, 5)))
layer = prnn_jax.nnx.LSTM(3, 4, rngs=nnx.Rngs(0))
layer(np.ones((2, 5, 3)), seq_lengths=[1, 2], resets=np.zeros((2, 5)))
carry, out = layer(x, return_carry=True)
both: tuple[Array, Array] = out, layer(x, return_carry=True)[1]
"""


#: Each line has an argument that there is not; Linen's attributes are dataclass fields.
WRONG = """
prnn_jax.lstm(x, p, lenghts=[1, 2])
prnn_jax.stack("lstm", x, [p], droput=0.1)
prnn_jax.init("gru", jax.random.key(0), 3, 4, shceme="keras")
prnn_jax.init("qrnn", jax.random.key(0), 3, 4, widht=3)
prnn_jax.stack("qrnn", x, [of_linear], poolng="f")
prnn_jax.nnx.LSTM(3, 4, bidirectinal=True, rngs=nnx.Rngs(0))
prnn_jax.nnx.GRU(3, 4, reset_before=True, rngs=nnx.Rngs(0))
prnn_jax.nnx.RNN(3, 4, actvation="relu", rngs=nnx.Rngs(0))
prnn_jax.nnx.Stack("lstm", 3, 4, 2, dropout=0.1, rngs=nnx.Rngs(0))
prnn_jax.linen.GRU(4, reset_before=True)
prnn_jax.nnx.GRU(3, 4, rngs=nnx.Rngs(0))(x, seq_length=[1, 2])
prnn_jax.linen.Stack("gru", 4, 2)(x, keep_order=True)
wrong: Array = prnn_jax.linen.GRU(4)(x, return_carry=True)
prnn_jax.linen.Stack("gru", 4, 2, skip=True)
prnn_jax.equinox.GRU(3, 4, head=2, key=jax.random.key(0))
prnn_jax.equinox.RNN(3, 4, activaton="relu", key=jax.random.key(0))
prnn_jax.nnx.QRNN(3, 4, widht=2, rngs=nnx.Rngs(0))
prnn_jax.linen.SRU(4, peephole=True)
prnn_jax.equinox.QRNN(3, 4, poling="f", key=jax.random.key(0))
prnn_jax.min_gru(x, jnp.ones((3, 8)), masks=jnp.ones((2, 5)))
prnn_jax.equinox.Stack("lstm", 3, 4, 2, norms=True, key=jax.random.key(0))
"""


#: Names that are no calls with options, or of which only the call has types; and one
#: that is overloaded, of which pyright names no argument (WRONG has it).
NOT_CALLED = ("Plan", "DefinedCell", "LayerStatistics", "ValueStatistics", "init")


@pytest.mark.skipif(PYRIGHT is None, reason="pyright is not installed")
def test_a_user_s_code(tmp_path):
    path = tmp_path / "user.py"
    path.write_text(CODE)
    exec(compile(CODE, "user.py", "exec"), {})  # and all of it runs
    command = [str(PYRIGHT), "--pythonpath", sys.executable, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def diagnostics(path: Path) -> list[dict]:
    """What pyright finds in a file."""
    command = [str(PYRIGHT), "--pythonpath", sys.executable, "--outputjson", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return json.loads(done.stdout)["generalDiagnostics"]


def calls() -> list[str]:
    """All functions and layers, each with an argument that there is not."""
    modules = prnn_jax, prnn_jax.nnx, prnn_jax.linen, prnn_jax.equinox
    made = []
    for module in modules:
        for name in module.__all__:
            value = getattr(module, name)
            is_given = inspect.isclass(value) and issubclass(value, tuple)
            if callable(value) and not is_given and name not in NOT_CALLED:
                made.append(f"{module.__name__}.{name}(lenghts=1)")
    return made


@pytest.mark.skipif(PYRIGHT is None, reason="pyright is not installed")
def test_every_function_and_layer_knows_its_options(tmp_path):
    modules = "nnx", "linen", "equinox"
    head = [f"import prnn_jax.{name}" for name in modules]
    path = tmp_path / "user.py"
    path.write_text("\n".join([*head, *calls()]))
    text = path.read_text().splitlines()
    found = {
        text[one["range"]["start"]["line"]]
        for one in diagnostics(path)
        if "lenghts" in one["message"]
    }
    assert len(calls()) > 50
    assert found == set(calls())


@pytest.mark.skipif(PYRIGHT is None, reason="pyright is not installed")
def test_misspelt_options_are_found(tmp_path):
    head = "import jax\nimport prnn_jax.equinox\n" + CODE.split("layer =")[0]
    path = tmp_path / "user.py"
    path.write_text(head + WRONG)
    found = diagnostics(path)
    lines = {one["range"]["start"]["line"] for one in found}
    first = head.count("\n") + 1
    wrong = range(first, first + WRONG.count("\n") - 1)
    assert lines == set(wrong), found
