"""Benchmarks of cliffs, projection and scaling, tiny: do they time what they say?"""

import json

import jax
import pytest

from benchmarks import _harness as harness
from benchmarks import cliffs, projection, scaling


@pytest.fixture(autouse=True)
def _on_the_cpu():
    with jax.default_device(jax.devices("cpu")[0]):
        yield


# ---- cliffs --------------------------------------------------------------------------


@pytest.fixture
def few_points(monkeypatch):
    monkeypatch.setattr(cliffs, "HIDDEN", (8, 9))
    monkeypatch.setattr(cliffs, "BATCH", (1, 2, 3))
    monkeypatch.setattr(cliffs, "TIME", 4)


def test_cliffs_are_looked_for_with_all_controls(few_points, tmp_path, capsys):
    out = tmp_path / "cliffs.json"
    cliffs.main(["--cells", "gru", "--budget-s", "0.01", "--out", str(out)])
    results = json.loads(out.read_text())["results"]
    measured = [r for r in results if r["engine"] == "CPU, measured"]
    assert [r["kind"] for r in measured] == [*cliffs.KINDS]
    for result in measured:
        points = {(p["hidden_size"], p["batch"]): p for p in result["points"]}
        assert set(points) == {(size, batch) for size in (8, 9) for batch in (1, 2, 3)}
        assert min(point["us"] for point in points.values()) > 0
        assert "over_line" in points[8, 2]
        assert "over_smaller_size" in points[9, 1]
    assert len(results) == len(cliffs.KINDS) + 2  # modelled
    lines = capsys.readouterr().out.strip().splitlines()
    assert len(lines) == 2 + len(results)


def test_an_excess_is_what_a_point_takes_over_its_neighbours():
    times = {(8, 1): 2.0, (8, 2): 9.0, (8, 3): 4.0, (9, 1): 2.0 * (9 / 8) ** 2}
    by_point = {(p["hidden_size"], p["batch"]): p for p in cliffs.excess(times)}
    assert by_point[8, 2]["over_line"] == pytest.approx(9 / 3 - 1)
    assert by_point[9, 1]["over_smaller_size"] == pytest.approx(0)
    assert by_point[8, 1].keys() == {"hidden_size", "batch", "us"}


# ---- projection ----------------------------------------------------------------------


def test_the_projection_is_compared_in_all_dtypes(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(projection, "SHAPES", [(2, 4, 5, 8)])
    out = tmp_path / "projection.json"
    dtypes = [*projection.TOLERANCES]
    projection.main(["--dtypes", *dtypes, "--budget-s", "0.01", "--out", str(out)])
    points = json.loads(out.read_text())["points"]
    assert [point["dtype"] for point in points] == dtypes
    assert all(point["us"].keys() == {"native", "xla"} for point in points)
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(points)


def test_a_wrong_projection_is_not_timed(monkeypatch):
    right = projection.prnn_jax.recurrence
    monkeypatch.setattr(
        projection.prnn_jax,
        "recurrence",
        lambda *given, **options: jax.tree.map(
            lambda a: 1.1 * a, right(*given, **options)
        ),
    )
    monkeypatch.setattr(harness, "measure", lambda *_, **__: pytest.fail("timed"))
    with pytest.raises(harness.DisagreementError, match="differ by"):
        projection.measure_point((2, 4, 5, 8), "float32", 0.001)


# ---- scaling -------------------------------------------------------------------------


def test_devices_communicate_the_gradients_and_nothing_larger():
    pytest.importorskip("flax")
    pytest.importorskip("optax")
    point = scaling.in_a_process(2, 2, 0.001)
    assert (point["devices"], point["utterances"]) == (2, 2)
    assert point["native_calls"] > 0
    assert point["all_gathers"] == 0
    gradients = 4 * point["parameters"]
    assert gradients <= point["all_reduce_bytes"] < 1.01 * gradients
    results = {"strong": [point], "weak": [point]}
    model = scaling.modelled(point["all_reduce_bytes"], point["step_ms"])
    text = scaling.tables({**results, "model": model})
    assert text.count("1.00×") == 2
    assert all(0 < row["efficiency"] < 1 for row in model)


def test_a_device_that_fails_says_why():
    with pytest.raises(RuntimeError, match="2 devices"):
        scaling.in_a_process(2, 1, 0.001)  # one utterance for two devices
