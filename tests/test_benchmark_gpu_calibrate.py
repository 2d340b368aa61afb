"""The planner's constants from timed plans (benchmarks/gpu/calibrate.py)."""

import json
import math
from pathlib import Path

import numpy as np

from benchmarks.gpu import calibrate
from prnn_jax._engine.modules import native

RESULTS = Path(__file__).parent.parent / "benchmarks/results/gpu/h200-paced.json"


def rows_of(model: dict, hiddens=(128, 256, 512, 1024), batches=(1, 8)) -> list[dict]:
    """As a device would measure them of which this model is true."""
    device = native.recorded_device("NVIDIA H100 80GB HBM3")
    device |= {"model": device["model"] | model}
    rows = []
    for hidden in hiddens:
        for batch in batches:
            for cell in ("lstm", "gru", "rnn_tanh"):
                for kind in ("forward", "backward"):
                    call = cell, kind, "bfloat16", hidden, batch
                    names = "cell", "pass", "products", "hidden", "batch"
                    for key, plan in calibrate.plans_of(call, device).items():
                        exchange, rows_, columns, is_streamed = key
                        rows.append(
                            dict(zip(names, call, strict=True))
                            | {"exchange": exchange, "rows": rows_, "columns": columns}
                            | {"is_streamed": is_streamed, "teams": plan["teams"]}
                            | {"step_us": plan["step_us"]}
                        )
    return rows


def test_a_model_is_found_again():
    true = {"grid_exchange": 700, "cluster_exchange": 600, "pointwise": 1500}
    device = native.recorded_device("NVIDIA H100 80GB HBM3")
    measured = calibrate.Measured(rows_of(true), device)
    before = measured.errors(device["model"])
    assert np.nanstd(before) > 0.1
    after = measured.errors(calibrate.fit(measured, device["model"]))
    assert np.abs(after).max() < 0.03
    # An exchange that asks less of the device may be a tenth slower.
    assert measured.regrets(true).max() <= math.log(1.1)


def test_the_recorded_constants_are_those_of_the_results():
    """cuda/devices.cc has what the command prints."""
    results = json.loads(RESULTS.read_text())
    device = native.recorded_device(results["device"])
    assert device["model"]["fitted_on"] == results["device"]
    measured = calibrate.Measured(results["plans"], device)
    errors = measured.errors(device["model"])
    assert np.isfinite(errors).all()
    assert abs(errors.mean()) < 0.03
    assert errors.std() < 0.15
    assert math.exp(measured.regrets(device["model"]).mean()) < 1.03


def test_the_command(capsys):
    assert calibrate.main([str(RESULTS)]) == 0
    now, fitted, *constants = capsys.readouterr().out.splitlines()
    assert "100 plans: measured / modelled 1.0" in now
    assert "28 choices" in fitted
    assert [line.split()[0] for line in constants] == [
        f".{name}" for name in calibrate.FITTED
    ]
