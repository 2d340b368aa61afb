"""Benchmarks of memory, padding and compile time, tiny: is what they time right?"""

import functools
import json

import jax
import pytest

from benchmarks import _command_line as command_line
from benchmarks import _harness as harness
from benchmarks import calibrate, compile_time, memory, padding

TINY = {
    memory: ["--cells", "lstm", "--batch", "2", "--time", "4", "--hidden", "8"],
    padding: ["--cells", "gru", "--batch", "2", "--hidden", "8"],
    compile_time: ["--depths", "1", "--modes", "train", "--rounds", "1"],
}


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch):
    monkeypatch.setattr(memory, "DEPTHS", (1, 2))
    monkeypatch.setattr(padding, "TIME", 8)
    with jax.default_device(jax.devices("cpu")[0]):
        yield


@pytest.mark.parametrize("module", TINY, ids=lambda m: m.NAME)
def test_a_run_writes_its_points(module, tmp_path, capsys):
    out = tmp_path / "results.json"
    budget = [] if module is compile_time else ["--budget-s", "0.01"]
    module.main([*TINY[module], *budget, "--out", str(out)])
    results = json.loads(out.read_text())
    assert results["benchmark"] == module.NAME
    assert results["points"]
    assert capsys.readouterr().out


@pytest.mark.parametrize("module", [memory, padding], ids=lambda m: m.NAME)
def test_a_part_does_not_replace_what_is_kept(module, tmp_path, monkeypatch):
    monkeypatch.setattr(command_line, "RESULTS", tmp_path)
    monkeypatch.setattr(module, "measure_point", lambda *_: {})
    monkeypatch.setattr(module, "table", str)
    module.main(["--cells", "gru"])
    assert not [*tmp_path.iterdir()]
    module.main([])
    assert [path.stem for path in tmp_path.iterdir()] == [module.NAME]


@pytest.mark.parametrize(
    ("module", "option"),
    [
        (calibrate, "--threads"),
        (calibrate, "--calls"),
        (compile_time, "--depths"),
        (compile_time, "--rounds"),
        (memory, "--batch"),
        (padding, "--hidden"),
    ],
)
def test_numbers_are_above_0(module, option, capsys):
    with pytest.raises(SystemExit):
        module.main([option, "0"])
    assert f"argument {option}: must be above 0, got 0" in capsys.readouterr().err


def test_less_is_kept_where_the_lean_reserve_is_asked_for():
    kept = memory.measure_point("lstm", "float32", (2, 64, 32), 0.001)
    kept = kept["bytes_per_unit_and_step"]
    assert 0 < kept["lean"] < kept["fast"] < kept["scan"]


@pytest.mark.parametrize("dtype", memory.TOLERANCE)
@pytest.mark.parametrize("policy", ["fast", "scan, checkpoint"])
def test_a_wrong_gradient_is_refused(dtype, policy):
    sizes, runs = (2, 4, 8), {}
    for name in memory.POLICIES:
        step, arguments = memory.training_step("gru", name, dtype, *sizes)
        runs[name] = functools.partial(step, *arguments(memory.TIMED_DEPTH))
    memory.check("gru", dtype, sizes, runs)
    right = runs[policy]
    runs[policy] = lambda: jax.tree.map(lambda a: 1.1 * a, right())
    with pytest.raises(harness.DisagreementError, match="differ by"):
        memory.check("gru", dtype, sizes, runs)


def test_a_wrong_padded_layer_is_not_timed(monkeypatch):
    right = padding.candidates

    def candidates(*point):
        runs = right(*point)
        run = runs["native spread"]
        return {**runs, "native spread": lambda: 1.1 * run()}

    monkeypatch.setattr(padding, "candidates", candidates)
    monkeypatch.setattr(harness, "measure", lambda *_, **__: pytest.fail("timed"))
    with pytest.raises(harness.DisagreementError, match="gru forward spread"):
        padding.measure_point("gru", "forward", 2, 8, 0.001)
