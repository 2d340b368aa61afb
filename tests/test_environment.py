"""What the environment says of the CPU engine: an error where it cannot be meant."""

import subprocess
import sys

import pytest
from support import run_python

VARIABLES = {
    "PRNN_CPU_ISA": "an instruction set of this processor that this build has (",
    "PRNN_CPU_WORKERS": "a whole number of threads from 0 to 65536",
    "PRNN_CPU_CACHE_BYTES": "a whole number of bytes from 1 to 2^40",
    "PRNN_CPU_SHARED_CACHE_BYTES": "a whole number of bytes from 0",
    "PRNN_CPU_PLAN": "one of packed, unpacked, batch, hidden, columns",
    "PRNN_CPU_RATES": "a file that benchmarks/calibrate.py wrote",
}
WRONG = [
    ("PRNN_CPU_ISA", "sse9"),
    ("PRNN_CPU_ISA", "AVX2"),
    ("PRNN_CPU_WORKERS", "abc"),
    ("PRNN_CPU_WORKERS", "-1"),
    ("PRNN_CPU_WORKERS", "65537"),
    ("PRNN_CPU_WORKERS", "1.5"),
    ("PRNN_CPU_WORKERS", "99999999999999999999"),
    ("PRNN_CPU_CACHE_BYTES", "1M"),
    ("PRNN_CPU_CACHE_BYTES", "0"),
    ("PRNN_CPU_CACHE_BYTES", " 1"),
    ("PRNN_CPU_SHARED_CACHE_BYTES", "32 MiB"),
    ("PRNN_CPU_SHARED_CACHE_BYTES", "-5"),
    ("PRNN_CPU_PLAN", "rows"),
    ("PRNN_CPU_RATES", "/no/such/file"),
]

ERROR = """
import pytest
with pytest.raises(ValueError) as raised:
    import prnn_jax
print(raised.value)
"""

# Set when the package has been loaded.
AT_FIRST_CALL = """
import os, jax, jax.numpy as jnp, prnn_jax
os.environ["PRNN_CPU_WORKERS"] = "many"
params = prnn_jax.Params(jnp.ones((3, 16)), jnp.ones((4, 16)))
try:
    jax.block_until_ready(prnn_jax.lstm(jnp.ones((2, 5, 3)), params))
except jax.errors.JaxRuntimeError as error:
    print(error)
"""


@pytest.mark.parametrize(("variable", "value"), WRONG)
def test_wrong_values(variable, value):
    said = run_python(ERROR, **{variable: value})
    assert f"prnn_jax: {variable} must be {VARIABLES[variable]}" in said
    assert f'got "{value}"' in said


def test_an_instruction_set_is_told_what_there_is():
    assert "portable)" in run_python(ERROR, PRNN_CPU_ISA="neon")


def test_empty_values_are_none():
    run_python("import prnn_jax", **dict.fromkeys(VARIABLES, ""))


def test_a_value_that_is_set_too_late():
    assert "PRNN_CPU_WORKERS must be a whole number" in run_python(AT_FIRST_CALL)


def test_right_values():
    done = subprocess.run(
        [sys.executable, "-c", "import prnn_jax"],
        env={
            "PRNN_CPU_ISA": "portable",
            "PRNN_CPU_WORKERS": "0",
            "PRNN_CPU_CACHE_BYTES": "1048576",
            "PRNN_CPU_SHARED_CACHE_BYTES": "0",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
