"""The processes that benchmarks run other libraries in."""

import operator
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks._workers import Worker, WorkerError


@pytest.fixture
def worker():
    with Worker("a framework", {"FROM_THE_PARENT": "yes"}) as made:
        yield made


def test_a_worker_runs_functions_in_its_own_process(worker):
    assert worker.call(os.getpid) != os.getpid()
    assert worker.call(os.getenv, "FROM_THE_PARENT") == "yes"
    array = np.arange(100_000.0).reshape(10, -1)
    np.testing.assert_array_equal(worker.call(np.transpose, array), array.T)


def test_an_error_in_a_worker_is_one_here_and_the_worker_goes_on(worker):
    with pytest.raises(WorkerError, match="a framework: ZeroDivisionError: ") as caught:
        worker.call(operator.truediv, 1, 0)
    assert "Traceback" in caught.value.__notes__[0]
    with pytest.raises(WorkerError, match="pickle"):
        worker.call(os.scandir)
    assert worker.call(abs, -1) == 1


@pytest.mark.parametrize(
    ("function", "argument", "status"),
    [(os._exit, 3, "3"), (signal.raise_signal, signal.SIGKILL, "-9")],
)
def test_a_worker_that_has_ended_says_so(worker, function, argument, status):
    for _ in range(2):
        with pytest.raises(WorkerError, match=f"a framework: .* status {status}; "):
            worker.call(function, argument)


def test_a_worker_that_hangs_is_ended(worker):
    worker.call(abs, -1)
    with pytest.raises(WorkerError, match=r"sleep took longer than 0\.2 s"):
        worker.call(time.sleep, 600, timeout_s=0.2)


def test_a_worker_is_stopped_while_it_has_nothing_to_do(worker):
    process = worker.call(os.getpid)
    assert _becomes(process, "T")
    assert worker.call(os.getpid) == process


def test_a_worker_ends_with_its_parent():
    program = (
        f"import sys; sys.path[:] = {sys.path!r}; import os, signal\n"
        "from benchmarks._workers import Worker\n"
        "worker = Worker('orphan'); print(worker.call(os.getpid), flush=True)\n"
        "signal.raise_signal(signal.SIGKILL)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert _becomes(int(done.stdout), "gone")


def _becomes(process: int, wanted: str) -> bool:
    """Whether the process gets into that state within a while."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try:
            stat = Path(f"/proc/{process}/stat").read_text()
            state = stat.rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            state = "gone"
        if ("gone" if state in "ZX" else state) == wanted:
            return True
        time.sleep(0.01)
    return False
