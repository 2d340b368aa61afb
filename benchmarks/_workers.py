"""Frameworks that are timed in turn, each in a process of its own.

Idle threads of a framework may spin while they wait for work, ONNX Runtime's for a
second on some machines, and so slow down whatever is timed next. A worker is therefore
stopped (SIGSTOP) whenever it has nothing to do, and its framework keeps its settings.
"""

import ctypes
import os
import pickle
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, Pipe
from typing import Any

#: A call that takes longer hangs: the longest compile and run within a minute.
TIMEOUT_S = 600.0

_PR_SET_PDEATHSIG = 1  # of prctl(2)


class WorkerError(Exception):
    """A function raised an error in a worker, or the worker has ended."""


class Worker:
    """A Python process that runs functions, one at a time.

    It is killed when the thread that made it ends, however that comes about.

    Args:
      name: in messages.
      environment: variables that the process has besides this one's.
    """

    def __init__(self, name: str, environment: Mapping[str, str] | None = None):
        self.name = name
        self._connection, theirs = Pipe()
        program = (
            f"import sys; sys.path[:] = {sys.path!r}; "
            f"from {__name__} import serve; serve({theirs.fileno()})"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", program],
            env={**os.environ, **(environment or {})},
            pass_fds=[theirs.fileno()],
        )
        theirs.close()  # so that its end is seen here

    def call(
        self, function: Callable, *arguments: Any, timeout_s: float = TIMEOUT_S
    ) -> Any:
        """`function(*arguments)`, run in the process.

        Args:
          function: of a module, which is imported there.
          arguments: what can be pickled, as can the result.
          timeout_s: how long it may take; then the process is ended.

        Raises:
          WorkerError: with the message of what went wrong.
        """
        request = pickle.dumps((function, arguments))
        try:
            self._process.send_signal(signal.SIGCONT)
            self._connection.send_bytes(request)
            if not self._connection.poll(timeout_s):
                self.close()
                raise WorkerError(
                    f"{self.name}: {function.__name__} took longer than {timeout_s:g} s"
                )
            reply = self._connection.recv_bytes()
        except (EOFError, OSError):
            raise WorkerError(
                f"{self.name}: the process has ended with status {self._status()}; "
                "see what it printed"
            ) from None
        self._process.send_signal(signal.SIGSTOP)
        succeeded, value = pickle.loads(reply)
        if not succeeded:
            message, trace = value
            error = WorkerError(f"{self.name}: {message}")
            error.add_note(trace)
            raise error
        return value

    def close(self) -> None:
        """Ends the process; calls after that are errors."""
        self._process.kill()
        self._process.wait()
        self._connection.close()

    def _status(self) -> int:
        """With which the process ended; it has closed its side already."""
        try:
            return self._process.wait(5)
        except subprocess.TimeoutExpired:
            self.close()
            return self._process.returncode

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(descriptor: int) -> None:
    """What the process does: answers calls until it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with its parent
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    connection = Connection(descriptor)
    while True:
        try:
            request = connection.recv_bytes()
        except EOFError:  # the parent ended before it could kill
            return
        connection.send_bytes(_answer(request))


def _answer(request: bytes) -> bytes:
    """Whether a call succeeded, and its result or the message and where it was."""
    try:
        function, arguments = pickle.loads(request)
        return pickle.dumps((True, function(*arguments)))
    except Exception as error:
        message = "".join(traceback.format_exception_only(error)).strip()
        return pickle.dumps((False, (message, traceback.format_exc())))
