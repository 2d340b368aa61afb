"""Type checkers take what the calls take and the documentation shows."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PYRIGHT = shutil.which("pyright", path=Path(sys.executable).parent)
CODE = """
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
layer = prnn_jax.nnx.LSTM(3, 4, rngs=nnx.Rngs(0))
layer(np.ones((2, 5, 3)), seq_lengths=[1, 2], resets=np.zeros((2, 5)))
"""


@pytest.mark.skipif(PYRIGHT is None, reason="pyright is not installed")
def test_a_user_s_code(tmp_path):
    path = tmp_path / "user.py"
    path.write_text(CODE)
    exec(compile(CODE, "user.py", "exec"), {})  # and all of it runs
    command = [str(PYRIGHT), "--pythonpath", sys.executable, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
