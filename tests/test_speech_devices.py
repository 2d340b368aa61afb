"""The speech example trained on several devices, and by several processes."""

import json
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from speech_support import written_config

from examples.speech import runs
from examples.speech.__main__ import main
from examples.speech.config import RunConfig, TrainConfig
from examples.speech.errors import SpeechError
from examples.speech.progress import read

ROOT = Path(__file__).parents[1]


def program(code: str, runs: list[list[str]], devices: int) -> None:
    """Runs code in a process that sees so many devices; `runs` are its argument."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    flags = f"--xla_force_host_platform_device_count={devices}"
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(runs)],
        env=os.environ
        | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}
        | {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def losses(run: Path) -> list[float]:
    records = [r for r in read(run / runs.METRICS) if r["kind"] == "step"]
    assert [r["step"] for r in records] == list(range(1, len(records) + 1))
    return [record["loss"] for record in records]


@pytest.fixture(scope="module")
def arguments(tmp_path_factory) -> list[str]:
    config = written_config(tmp_path_factory.mktemp("speech"))
    # A batch has five utterances: some devices have none.
    return [
        *("train", "--config", str(config), "--train.batch-size", "8"),
        *("--train.epochs", "3", "--train.learning-rate", "0.02"),
    ]


@pytest.fixture(scope="module")
def expected(arguments, tmp_path_factory) -> list[float]:
    """The losses on one device."""
    run = tmp_path_factory.mktemp("one")
    main([*arguments, "--run", str(run)])
    return losses(run)


# Of each run the last argument: after which step it is interrupted; another goes on.
INTERRUPTED = """
import json, sys
from examples.speech import commands
from examples.speech.__main__ import main

take = commands.TrainingProgress.step
for *arguments, last in json.loads(sys.argv[1]):

    def step(self, number, epoch, loss):
        take(self, number, epoch, loss)
        if number == int(last):
            raise KeyboardInterrupt

    commands.TrainingProgress.step = step
    try:
        main(arguments)
    except SystemExit as end:
        assert "interrupted" in str(end)
"""

EIGHT = """
import jax, numpy as np
from examples.speech.devices import Devices

batch = Devices(8).share(np.arange(16).reshape(8, 2))
parts = {x.device: x.data.tolist() for x in batch.addressable_shards}
assert parts == {d: [[2 * n, 2 * n + 1]] for n, d in enumerate(jax.devices())}
"""


def test_eight_devices_learn_what_one_does(arguments, expected, tmp_path):
    """And go on bit for bit where they were interrupted."""

    runs = [
        [*arguments, "--train.devices", "8", "--run", str(tmp_path / run), str(last)]
        for run, last in (("whole", 9), ("in-two", 2), ("in-two", 9))
    ]
    program(EIGHT + INTERRUPTED, runs, devices=8)
    whole, in_two = losses(tmp_path / "whole"), losses(tmp_path / "in-two")
    assert len(expected) == 3
    assert expected[-1] < 0.9 * expected[0]
    # Sums in another order, over three updates.
    np.testing.assert_allclose(whole, expected, rtol=1e-4)
    assert in_two == whole
    main(["evaluate", "--run", str(tmp_path / "whole")])  # on one device


def test_two_processes_learn_what_one_does(arguments, expected, tmp_path):
    def train(last: int) -> None:
        with socket.socket() as free:
            free.bind(("localhost", 0))
            coordinator = f"localhost:{free.getsockname()[1]}"

        def process(number: int) -> None:
            options = [
                *("--coordinator", coordinator, "--processes", "2"),
                *("--process", str(number), "--train.devices", "4"),
                *("--run", str(tmp_path / "run"), str(last)),
            ]
            program(INTERRUPTED, [[*arguments, *options]], devices=2)

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(process, range(2)))

    train(last=2)
    train(last=9)
    first, second = (losses(tmp_path / "run" / name) for name in (".", "process-1"))
    np.testing.assert_allclose(first, expected, rtol=1e-4)
    assert second == first
    main(["evaluate", "--run", str(tmp_path / "run")])


def test_what_cannot_be_is_said(arguments, tmp_path):
    with pytest.raises(SpeechError, match="batch_size that 3 devices share evenly"):
        RunConfig(train=TrainConfig(devices=3))
    run = ["--run", str(tmp_path)]
    with pytest.raises(SystemExit, match=r"of at most .*_device_count=1024 makes more"):
        main([*arguments, *run, "--train.batch-size=1024", "--train.devices=1024"])
    with pytest.raises(SystemExit, match="need --coordinator"):
        main([*arguments, *run, "--processes", "2"])
    third = ["--coordinator", "localhost:1", "--processes", "2", "--process", "2"]
    with pytest.raises(SystemExit, match="below --processes, got 2 and 2"):
        main([*arguments, *run, *third])
