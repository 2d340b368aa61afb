"""What the environment says of the CUDA engine: an error where it cannot be meant."""

from types import SimpleNamespace

import jax
import pytest
from cuda_plans import H200

import prnn_jax
from prnn_jax._call.call import Call
from prnn_jax._engine import gpu


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch):
    for variable in ("DEVICE", "MAX_SMS", "GRAPHS", "STACKS"):
        monkeypatch.delenv(f"PRNN_CUDA_{variable}", raising=False)


def explained(device=H200):
    sizes = {"batch": 16, "time": 100, "hidden_size": 512}
    return prnn_jax.explain("lstm", **sizes, device=device)


@pytest.mark.parametrize("value", ["many", "-1", "1.5", "²", "99999999999", " 8"])
def test_a_number_of_sms_that_is_none(value, monkeypatch):
    monkeypatch.setenv("PRNN_CUDA_MAX_SMS", value)
    with pytest.raises(ValueError, match=f"must be a number of SMs, got '{value}'"):
        explained()


def test_more_sms_than_there_are(monkeypatch):
    """No plan has them: without an error, lax.scan would run all calls."""
    monkeypatch.setenv("PRNN_CUDA_MAX_SMS", "120")
    said = "PRNN_CUDA_MAX_SMS must be at most 108, the SMs of NVIDIA A100-SXM4-80GB"
    with pytest.raises(ValueError, match=said):
        explained(device="NVIDIA A100-SXM4-80GB")
    call = Call("lstm", max_sms=120)
    of = call, "bfloat16", 1, 512, 16
    monkeypatch.setattr(gpu, "local_device", lambda: None)
    # Programs for a GPU that is not known are made for one that has fewer.
    assert gpu.refusal(*of, backward=False) == ""
    monkeypatch.setenv("PRNN_CUDA_DEVICE", "NVIDIA A100-SXM4-80GB")
    with pytest.raises(ValueError, match=said):
        gpu.refusal(*of, backward=False)
    monkeypatch.setenv("PRNN_CUDA_DEVICE", H200)
    assert gpu.refusal(*of, backward=False) == ""
    for none in "0", "":
        monkeypatch.setenv("PRNN_CUDA_MAX_SMS", none)
        assert "NVIDIA H200 (132 SMs)" in str(explained())


def test_several_gpus_here_leave_a_smaller_one_its_sms(monkeypatch):
    monkeypatch.setattr(gpu, "_beside_collectives", lambda: 112)
    assert "with max_sms=16" in str(explained(device="NVIDIA H200 MIG 1g.18gb"))
    assert "with max_sms=112" in str(explained())


def test_programs_for_a_smaller_gpu_than_those_here(monkeypatch):
    """What is left here is more than that one has, and an error there."""
    two = [SimpleNamespace(core_count=132)] * 2
    monkeypatch.setattr(jax, "devices", lambda backend: two)
    monkeypatch.setattr(gpu, "cuda", object())
    for name, sms in (("NVIDIA A100-SXM4-80GB", 108), (H200, 112)):
        monkeypatch.setenv("PRNN_CUDA_DEVICE", name)
        assert gpu.max_sms() == sms


@pytest.mark.parametrize("variable", ["PRNN_CUDA_GRAPHS", "PRNN_CUDA_STACKS"])
def test_what_is_on_or_off(variable, monkeypatch):
    for value in "off", "true", "2":
        monkeypatch.setenv(variable, value)
        with pytest.raises(ValueError, match=f"{variable} must be 0 or 1, got"):
            gpu.is_on(variable, True)
    for value, is_on in (("0", False), ("1", True), ("", True)):
        monkeypatch.setenv(variable, value)
        assert gpu.is_on(variable, True) == is_on
    monkeypatch.setenv("PRNN_CUDA_GRAPHS", "off")
    with pytest.raises(ValueError, match="PRNN_CUDA_GRAPHS must be 0 or 1, got 'off'"):
        gpu.target("prnn_forward")
