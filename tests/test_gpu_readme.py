"""The README's table of a GPU is what a campaign has measured there."""

import json
from pathlib import Path

from benchmarks.gpu import readme

ROOT = Path(__file__).parent.parent

PEERS = """\
{"part": "peers", "library": "jax", "version": "0.11", "device": "NVIDIA H200"}
{"part": "peers", "cell": "lstm", "hidden": 256, "batch": 1, "dtype": "bfloat16", \
"mode": "train", "who": "native", "step_us": 2.0}
{"part": "peers", "cell": "lstm", "hidden": 256, "batch": 1, "dtype": "bfloat16", \
"mode": "train", "who": "cudnn", "step_us": 3.0}
{"part": "peers", "cell": "lstm", "hidden": 256, "batch": 8, "dtype": "bfloat16", \
"mode": "train", "who": "native", "step_us": 2.0}
{"part": "peers", "cell": "lstm", "hidden": 256, "batch": 8, "dtype": "bfloat16", \
"mode": "train", "who": "cudnn", "step_us": 12.0}
"""


def test_the_readmes_table_is_what_was_measured(tmp_path, capsys):
    (tmp_path / "peers.jsonl").write_text(PEERS)
    page = tmp_path / "README.md"
    page.write_text((ROOT / "README.md").read_text())
    for _ in range(2):
        assert readme.main([str(tmp_path), "--file", str(page)]) == 0
    lines = page.read_text().splitlines()
    row = "| lstm | bfloat16 | train | 3.00× (1.50×, 2) |"
    assert lines.count(row) == 1
    assert sum("NVIDIA H200; jax 0.11" in line for line in lines) == 1
    before = page.read_text()
    kept = tmp_path / "kept.json"
    rows = [json.loads(line) for line in PEERS.splitlines()]
    other = [{"kernel": "recurrence", "us": 1.0}]  # of no part
    of_all = {"device": "NVIDIA H200", "peers": rows, "kernels": other}
    kept.write_text(json.dumps(of_all))
    assert readme.main([str(kept), "--file", str(page)]) == 0
    assert page.read_text() == before
    on_cpu = PEERS.replace("NVIDIA H200", "cpu")
    (tmp_path / "peers.jsonl").write_text(on_cpu)
    assert readme.main([str(tmp_path), "--file", str(page)]) == 1
    assert "timed on an NVIDIA GPU, got 5 rows of ['cpu']" in capsys.readouterr().err
    assert page.read_text() == before
