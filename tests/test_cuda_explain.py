"""What is said of the CUDA engine's plans: refusals, the table, `explain`."""

import re
from dataclasses import replace
from types import SimpleNamespace

import jax
import pytest
from cuda_plans import H200, planned, record

import prnn_jax
from prnn_jax._call.call import Call
from prnn_jax._engine import ffi, gpu
from prnn_jax._engine.plan import engine_for


def test_streamed():
    planning = planned("gru", number="float32", hidden=2560, batch=16)
    assert planning["best"]["streamed_k_blocks"] > 0
    reason = planning["reason"]
    assert reason.startswith("gru on NVIDIA H200 (132 SMs): 1 team of ")
    assert "the chip has no room for all weights (79 MB): " in reason
    assert re.search(r": \d\d MB are read in each step\.$", reason), reason

    reason = planned("gru", "backward", hidden=2560, batch=16)["reason"]
    assert re.search(r": \d\d MB are read in each step, from L2\.$", reason), reason


@pytest.mark.parametrize(("batch", "readings"), [(1, 1), (16, 1), (17, 2), (64, 4)])
def test_weights_read_again_for_more_rows_are_the_scans(batch, readings, monkeypatch):
    monkeypatch.setenv("PRNN_CUDA_DEVICE", H200)
    plan = explained(hidden_size=4096, batch=batch, dtype="bfloat16")
    assert plan.streamed_k_blocks
    assert plan.panels == 2
    assert "32 units, 2 panels of 64 rows x 16 of the batch" in str(plan)
    assert plan.engine == ("native" if readings == 1 else "scan")
    if readings > 1:
        assert f"does not hold {readings} times a step, 16 rows each" in str(plan)
    call = Call("lstm", max_sms=0)
    for asked in (call, replace(call, implementation="native")):
        refusal = gpu.refusal(asked, "bfloat16", 1, 4096, batch, backward=False)
        assert bool(refusal) == (readings > 1 and asked.implementation is None)


def test_max_sms_decides_what_is_streamed():
    def streams(max_sms):
        planning = planned(hidden=1024, max_sms=max_sms)
        return "are read in each step" in planning["reason"]

    assert streams(20)
    assert not streams(64)


def test_too_large_for_any_plan():
    planning = planned(hidden=2**30)
    assert planning["best"] is None
    assert planning["is_valid"]
    assert re.fullmatch(
        r"lstm: no persistent plan on NVIDIA H200 \(132 SMs\): hidden_size=1073741824 "
        r"in bfloat16 needs more shared memory per block, even where the weights are "
        r'streamed; hidden_size=\d{6,} fits; implementation="scan" always runs\.',
        planning["reason"],
    )
    largest = int(planning["reason"].split("hidden_size=")[2].split()[0])
    assert planned(hidden=largest)["best"] is not None
    assert planned(hidden=largest + 1)["best"] is None


@pytest.mark.parametrize("max_sms", [-1, 133, 2**31 - 1])
def test_max_sms_that_the_device_does_not_have(max_sms):
    planning = planned(max_sms=max_sms)
    assert not planning["is_valid"]
    assert planning["best"] is None
    assert planning["candidates"] == []
    assert planning["reason"] == (
        "lstm: max_sms must be from 1 to 132, the SMs of NVIDIA H200, "
        f"got {max_sms}; leave it out for all."
    )


@pytest.mark.parametrize("size", ["time", "batch", "groups", "hidden"])
def test_sizes_below_one(size):
    planning = planned(**{size: 0})
    assert not planning["is_valid"]
    assert "of at least 1, got" in planning["reason"]


def test_the_reset_before_the_product():
    """Two products in series are two exchanges, and twice the time of one."""
    before, after = (planned(cell)["best"] for cell in ("gru_reset_before", "gru"))
    assert 1.8 * after["step_us"] < before["step_us"] < 2.4 * after["step_us"]
    plan = explained("gru", reset_after=False)
    assert plan.engine == "native"


def test_a_projection():
    planning = planned("lstm_projected")
    assert planning["best"] is None
    assert planning["is_valid"]
    assert "lstm: a projection (w_hr) has no CUDA kernel yet" in planning["reason"]


def test_old_devices():
    device = record(H200) | {"name": "NVIDIA T4", "compute_capability": 75}
    assert planned(device=device)["reason"] == (
        "lstm: NVIDIA T4 has compute capability 7.5, and the CUDA engine needs 8.0; "
        'implementation="scan" always runs.'
    )


def test_the_table_has_every_candidate_and_marks_the_best():
    planning = planned(hidden=512, batch=16)
    first, head, *lines = planning["text"].splitlines()
    assert first == planning["reason"]
    assert "us/step" in head
    assert len(lines) == len(planning["candidates"])
    (marked,) = (line for line in lines if line.startswith("*"))
    assert marked[2:].startswith(planning["best"]["exchange"])
    assert f"{planning['best']['step_us']:.2f}" in marked


def test_names_that_are_not_known():
    for wrong in (
        {"cell": "lstmp"},
        {"kind": "sideways"},
        {"number": "float64"},
        {"device": "abacus"},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong.values()))):
            planned(**wrong)
    with pytest.raises(KeyError, match="compute_capability"):
        planned(device={"name": H200})


# ---- explain -------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch):
    for variable in ("PRNN_CUDA_DEVICE", "PRNN_CUDA_MAX_SMS", "PRNN_CUDA_STACKS"):
        monkeypatch.delenv(variable, raising=False)


def explained(cell="lstm", **options):
    sizes = {"batch": 16, "time": 100, "hidden_size": 512, "device": H200}
    return prnn_jax.explain(cell, **sizes | options)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
def test_explain_tells_the_cuda_engines_plan(cell, training, dtype):
    plan = explained(cell, training=training, dtype=dtype)
    kind = "backward" if training else "forward"
    name = "rnn_tanh" if cell == "rnn" else cell
    best = planned(name, kind, dtype, batch=16)["best"]
    assert plan.engine == "native"
    assert plan.platform == "gpu"
    assert plan.device == H200
    assert plan.exchange == best["exchange"]
    assert plan.tile == (best["rows"], best["columns"])
    assert plan.blocks * plan.teams == best["grid"]
    assert plan.register_k_blocks + plan.shared_k_blocks == best["k_blocks"]
    assert plan.step_us == best["step_us"]
    assert len(plan.candidates) >= 2
    text = str(plan)
    for part in (
        "engine: native on gpu",
        f"device: {H200}",
        f"exchange: {plan.exchange}",
        f"modelled: {plan.step_us:.2f} us per step",
        "modelled with constants fitted on an NVIDIA H200",
        "is tested on an H200",
        *plan.candidates,
    ):
        assert part in text


def test_explain_takes_exact_products_where_they_are_asked_for():
    exact = planned(number="float32_exact", batch=16)["best"]["step_us"]
    assert explained().step_us < exact
    for precision in ("highest", jax.lax.Precision.HIGHEST):
        assert explained(precision=precision).step_us == exact
    assert explained(precision="default").step_us < exact
    half = explained(dtype="float16").step_us
    assert explained(dtype="float16", precision="highest").step_us == half


def test_explain_keeps_to_max_sms():
    plan = explained(hidden_size=1024, max_sms=70, dtype="bfloat16")
    assert plan.blocks * plan.teams <= 70
    assert "max_sms=70" in str(plan)
    plan = explained(hidden_size=2048, max_sms=70, dtype="bfloat16")
    assert plan.blocks <= 70
    assert plan.streamed_k_blocks


def test_explain_tells_why_a_layer_goes_to_the_scan():
    plan = explained("gru", hidden_size=2**30)
    assert plan.engine == "scan"
    assert plan.exchange is None
    assert "needs more shared memory per block" in str(plan)
    assert "us/step" in str(plan)
    assert explained("lstm", clip=prnn_jax.Clip(state=1.0)).engine == "native"
    plan = explained(dtype="float64")
    assert plan.engine == "scan"
    assert "float32, bfloat16, float16, not float64" in str(plan)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "H2000"}, "device must be one of .*'NVIDIA H200'.*, got 'H2000'"),
        ({"platform": "cpu"}, "device='NVIDIA H200' is a GPU, but platform='cpu'"),
        ({"max_sms": 0}, "max_sms must be at least 1, got 0"),
        ({"max_sms": 133}, "max_sms must be from 1 to 132, the SMs of NVIDIA H200"),
        ({"precision": "best"}, "precision must be one of .*'highest'.* got 'best'"),
    ],
)
def test_explain_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        explained(**options)


def test_explain_needs_a_gpu_or_the_name_of_one(monkeypatch):
    def no_gpu(backend):
        raise RuntimeError(f"Unknown backend {backend}")

    monkeypatch.setattr(jax, "local_devices", no_gpu)
    with pytest.raises(ValueError, match="no GPU to plan for; name one with device="):
        explained(device=None, platform="gpu")


def test_explain_goes_by_the_environment(monkeypatch):
    monkeypatch.setenv("PRNN_CUDA_DEVICE", H200)
    monkeypatch.setenv("PRNN_CUDA_MAX_SMS", "70")
    assert "NVIDIA H200 with max_sms=70" in str(explained(device=None, platform="gpu"))
    assert "NVIDIA B200 with max_sms=60" in str(
        explained(device="NVIDIA B200", max_sms=60)
    )


@pytest.mark.parametrize(
    ("cell", "options", "is_proved"),
    [
        ("lstm", {}, True),
        ("lstm", {"peepholes": True}, True),
        ("rnn", {"activation": "softsign"}, True),
        ("gru", {"reset_after": False}, False),
        ("lstm", {"proj_size": 128}, False),
        ("gru", {"clip": prnn_jax.Clip(pre_activations=3.0)}, False),
        ("lstm", {"layers": 5, "hidden_size": 256, "dtype": "bfloat16"}, False),
    ],
)
def test_what_no_gpu_has_run_is_said(cell, options, is_proved, monkeypatch):
    monkeypatch.setenv("PRNN_CUDA_STACKS", "1")
    text = str(explained(cell, **options))
    assert ("is tested on an H200" in text) == is_proved
    assert ("no GPU has run such a call yet" in text) != is_proved


def test_the_plan_of_a_kernel_that_does_not_run_is_said_to_be_that():
    text = str(explained(hidden_size=4096, batch=17, dtype="bfloat16"))
    assert text.index("the kernel that does not run:") < text.index("exchange: grid")
    assert "does not run" not in str(explained())


@pytest.mark.parametrize("platform", ["gpu", "cuda"])
def test_explain_plans_for_this_machines_gpu(monkeypatch, platform):
    gpu = SimpleNamespace(
        platform="gpu", device_kind=H200, compute_capability="9.0", core_count=60
    )
    monkeypatch.setattr(jax, "local_devices", lambda backend: [gpu])
    monkeypatch.setattr(ffi, "PLATFORMS", ("cpu", "cuda"))
    plan = explained(device=None, platform=platform)
    assert plan.engine == "native"
    assert "NVIDIA H200 (60 SMs)" in str(plan)
    # A build without the engine runs the scan, whatever it could plan.
    monkeypatch.setattr(ffi, "PLATFORMS", ("cpu",))
    plan = explained(device=None, platform=platform)
    assert plan.engine == "scan"
    assert "this build has no CUDA engine" in str(plan)
    gpu.device_kind, gpu.compute_capability = "NVIDIA T4", "7.5"
    plan = explained(device=None, platform=platform)
    assert plan.engine == "scan"
    assert "NVIDIA T4 has compute capability 7.5" in str(plan)


@pytest.mark.parametrize(("sms", "left"), [(132, 112), (20, 1), (16, 1)])
def test_beside_collectives_a_small_gpu_keeps_an_sm(sms, left, monkeypatch):
    """0 would be all of them, and fewer none that a planner takes."""
    two = [SimpleNamespace(core_count=sms)] * 2
    monkeypatch.setattr(jax, "devices", lambda backend: two)
    monkeypatch.setattr(gpu, "cuda", object())
    monkeypatch.delenv("PRNN_CUDA_MAX_SMS", raising=False)
    assert gpu.max_sms() == left


@pytest.mark.parametrize("is_built", [False, True])
@pytest.mark.parametrize("cell", ["lstm", "min_gru", prnn_jax.normed("gru")])
def test_amds_gpus_run_the_scan(cell, is_built, monkeypatch):
    """To JAX, they are "gpu" as NVIDIA's are."""
    gpu = SimpleNamespace(
        device_kind="AMD Instinct MI300X", compute_capability="gfx942", core_count=304
    )
    monkeypatch.setattr(jax, "local_devices", lambda backend: [gpu])
    monkeypatch.setattr(ffi, "PLATFORMS", ("cpu", "cuda") if is_built else ("cpu",))
    plan = explained(cell, device=None, platform="gpu")
    assert plan.engine == ("associative_scan" if cell == "min_gru" else "scan")
    assert "AMD Instinct MI300X, which is not NVIDIA's" in str(plan)
    assert explained("lstm").device == H200


@pytest.mark.parametrize("is_built", [False, True])
@pytest.mark.parametrize(
    ("cell", "options", "reason"),
    [
        (
            "lstm",
            {"proj_size": 32, "clip": prnn_jax.Clip(projection=3.0)},
            "clip.projection has no CUDA kernel: it stands between w_hr and w_hh, "
            "which are one there",
        ),
    ],
)
def test_a_cell_without_a_kernel_is_the_reason_wherever_it_runs(
    cell, options, reason, is_built, monkeypatch
):
    there = ("cpu", "cuda") if is_built else ("cpu",)
    monkeypatch.setattr(ffi, "PLATFORMS", there)
    for where in ({}, {"device": None, "platform": "gpu"}):
        plan = explained(cell, **options, **where)
        assert (plan.engine, plan.reasons) == ("scan", (reason,))


def test_the_platform_of_a_call(monkeypatch):
    call = Call("lstm")
    assert engine_for(call, "float32", "gpu")[0] == "scan" or "cuda" in ffi.PLATFORMS
    monkeypatch.setattr(ffi, "PLATFORMS", ("cpu", "cuda"))
    for dtype in ("float32", "bfloat16", "float16"):
        for platform in ("gpu", "cuda"):
            assert engine_for(call, dtype, platform)[0] == "native"
    assert engine_for(call, "float64", "gpu")[0] == "scan"
    assert engine_for(call, "bfloat16", "cpu")[0] == "native"
    projected = "lstm_projected", "lstm_projected_general", "lstm_projected_peephole"
    for cell in "gru_reset_before", *projected:
        for platform in ("gpu", "cpu"):
            assert engine_for(Call(cell), "float32", platform)[0] == "native"
    assert engine_for(Call(prnn_jax.normed("gru").row), "float32", "gpu")[0] == "native"


def test_a_gpu_that_is_not_known(monkeypatch):
    """What is held on chip or not run must fit on all GPUs; others stream a part."""
    monkeypatch.setattr(ffi, "PLATFORMS", ("cpu", "cuda"))
    monkeypatch.setattr(gpu, "local_device", lambda: None)
    monkeypatch.delenv(gpu.DEVICE_VARIABLE, raising=False)

    def refusal(cell, hidden):
        return gpu.refusal(Call(cell), "bfloat16", 1, hidden, 4, backward=False)

    normed = prnn_jax.normed("lstm").row
    assert not refusal(normed, 128)
    assert "where the chip holds all weights" in refusal(normed, 512)
    assert not refusal("lstm", 512)
    monkeypatch.setenv(gpu.DEVICE_VARIABLE, "NVIDIA H200")
    assert not refusal(normed, 512)


@pytest.mark.parametrize("training", [False, True])
def test_layers_at_once(training, monkeypatch):
    sizes = {"time": 1000, "batch": 8, "dtype": "bfloat16", "training": training}
    plan = explained(hidden_size=256, layers=5, **sizes)
    assert plan.teams == 1
    assert "one layer after the other: PRNN_CUDA_STACKS=1 would have" in str(plan)

    monkeypatch.setenv("PRNN_CUDA_STACKS", "1")
    plan = explained(hidden_size=256, layers=5, **sizes)
    assert plan.engine == "native"
    assert plan.teams == 5
    assert "all 5 layers run at once" in str(plan)

    plan = explained(hidden_size=768, layers=3, **sizes)
    assert plan.teams == 1
    assert "one layer after the other: lstm: no persistent plan" in str(plan)

    plan = explained(hidden_size=1024, layers=2, **sizes | {"batch": 16})
    assert "one layer after the other: forward, 2 layers at once would take" in str(
        plan
    )

    plan = explained(hidden_size=256, layers=5, groups=2, **sizes)
    assert "one layer after the other: a GPU runs layers of one direction" in str(plan)
