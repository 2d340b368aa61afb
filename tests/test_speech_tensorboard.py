"""The curves of a training of the speech example, in TensorBoard's files."""

import struct
import sys
from pathlib import Path

import pytest
from speech_support import written_config

from examples.speech import commands, runs
from examples.speech.__main__ import main
from examples.speech.progress import read


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Of the one file there: records of a length, its check, an event, its check."""
    from tensorboardX.proto import event_pb2

    (file,) = folder.iterdir()
    content, found = file.read_bytes(), {}
    while content:
        (size,) = struct.unpack("<Q", content[:8])
        event = event_pb2.Event.FromString(content[12 : 12 + size])
        content = content[12 + size + 4 :]
        for value in event.summary.value:
            found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def test_each_step_is_there_once_though_the_run_was_interrupted(tmp_path, monkeypatch):
    pytest.importorskip("tensorboardX")
    config, run = written_config(tmp_path), tmp_path / "run"
    arguments = ["train", "--config", str(config), "--run", str(run), "--tensorboard"]
    take = commands.TrainingProgress.step

    def step(self, number, epoch, loss):
        take(self, number, epoch, loss)
        if number > 4:  # after the checkpoint of step 4, so that 5 comes again
            raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(commands.TrainingProgress, "step", step)
        with pytest.raises(SystemExit, match="interrupted"):
            main(arguments)
    main(arguments)
    found, records = scalars(run / "tensorboard"), read(run / runs.METRICS)
    for kind, key, tag in (
        ("step", "loss", "train/loss"),
        ("epoch", "dev_cer", "dev/CER"),
    ):
        of_kind = [r for r in records if r["kind"] == kind]
        assert [s for s, _ in found[tag]] == [r["step"] for r in of_kind]
        values = [value for _, value in found[tag]]
        assert values == pytest.approx([r[key] for r in of_kind])
    assert len(found["train/loss"]) == 6
    assert len(found["dev/CER"]) == len(found["epoch/seconds"]) == 2


def test_without_its_library_there_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    config = str(written_config(tmp_path))
    with pytest.raises(SystemExit, match="pip install tensorboardX"):
        main(["train", "--config", config, "--run", str(tmp_path), "--tensorboard"])
