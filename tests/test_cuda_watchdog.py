"""A block that does not run: the others' wait for it ends, and a call says so."""

import re
import shutil

import jax
import pytest
from cases import Case
from emulated import emulation, forward

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="needs c++")

SMALL = Case("lstm", 2, (2,), 40, 3, state=True)
ERROR = jax.errors.JaxRuntimeError


@pytest.fixture
def cuda(monkeypatch):
    with emulation(monkeypatch) as session:
        yield session


# A block tells the others nothing; one granule is lost.
@pytest.mark.parametrize("mistake", ["block_silent", "skip_store"])
@pytest.mark.parametrize("exchange", ["grid", "cluster"])
def test_a_wait_that_would_not_end_is_given_up(cuda, exchange, mistake):
    program = forward(SMALL)
    cuda.use(exchange=exchange)
    cuda.mistake(mistake)
    with pytest.raises(ERROR, match="unspecified launch failure"):
        program()
    said = cuda.given_up.splitlines()[-1]
    found = re.search(
        rf"block (\d+) \({exchange} exchange, group 0, batch rows from 0\) waited at "
        r"step (\d) for values of another block",
        said,
    )
    assert found, said
    block, step = map(int, found.groups())
    assert step < SMALL.time
    assert mistake != "block_silent" or block != 1
    # Whoever calls next on that GPU is told; CUDA, which has failed, is not asked.
    cuda.mistake()
    cuda.fail("", 0)
    with pytest.raises(ERROR, match="PRNN_CUDA_WATCHDOG_S allows"):
        program()
    assert cuda.calls == {}
    cuda.use(exchange=exchange)
    program()


def test_without_a_watchdog_a_wait_does_not_end(cuda, monkeypatch):
    """For debuggers. The emulator ends it when nothing can be expected any more."""
    monkeypatch.setenv("PRNN_CUDA_WATCHDOG_S", "0")
    program = forward(SMALL)
    cuda.use(exchange="grid")
    before = cuda.given_up
    cuda.mistake("block_silent")
    with pytest.raises(ERROR, match="deadlock: every thread waits"):
        program()
    assert cuda.given_up == before


def test_a_short_time_is_not_none(cuda, monkeypatch):
    """Less than a tick of the clock would be 0, which is no limit."""
    monkeypatch.setenv("PRNN_CUDA_WATCHDOG_S", "1e-6")
    program = forward(SMALL)
    cuda.use(exchange="grid")
    program()
    cuda.mistake("block_silent")
    with pytest.raises(ERROR, match="the kernel has ended itself"):
        program()


@pytest.mark.parametrize("seconds", ["2s", "-1", "4000", "nan", "1e9", " 1"])
def test_a_watchdog_of_no_sense(cuda, monkeypatch, seconds):
    monkeypatch.setenv("PRNN_CUDA_WATCHDOG_S", seconds)
    program = forward(SMALL)
    cuda.use(exchange="grid")
    with pytest.raises((ERROR, ValueError), match="must be a number of seconds from 0"):
        program()
    monkeypatch.setenv("PRNN_CUDA_WATCHDOG_S", "0.5")
    program()
