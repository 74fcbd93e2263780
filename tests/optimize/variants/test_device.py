"""Where variants are judged: on the target where this machine has it, else on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.optimize.recipes.base import Target
from mlctl.optimize.variants import device
from mlctl.optimize.variants.device import RunDevice, find_device
from mlctl.services.model.tensorrt.machine import Gpu

GRAPH = Path("model.onnx")
GPU = "NVIDIA H200 (compute 9.0)"


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a GPU, CUDA and TensorRT."""
    monkeypatch.setattr(device, "provider_problem", lambda: None)
    monkeypatch.setattr(device, "open_session", lambda *_: None)
    monkeypatch.setattr(device, "find_gpu", lambda: Gpu("NVIDIA H200", "9.0", "580.65.06"))


def unavailable(*_: object) -> None:
    raise MlctlError(ErrorCode.PROVIDER_UNAVAILABLE, "it is not there")


@pytest.mark.parametrize("target", [Target.CUDA, Target.TENSORRT])
def test_find_device__the_machine_has_the_target__names_its_gpu(target: Target) -> None:
    assert find_device(target, GRAPH) == RunDevice(target, target.value, gpu=GPU)


def test_find_device__cpu__asks_for_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "find_gpu", unavailable)
    assert find_device(Target.CPU, GRAPH) == RunDevice(Target.CPU, "cpu")


@pytest.mark.parametrize(
    ("target", "missing"),
    [
        (Target.CUDA, "open_session"),
        (Target.CUDA, "find_gpu"),
        (Target.TENSORRT, "find_gpu"),
    ],
)
def test_find_device__something_is_missing__is_the_cpu_with_the_reason(
    target: Target, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, missing, unavailable)
    found = find_device(target, GRAPH)
    assert (found.provider, found.missing, found.timed) == ("cpu", "it is not there", False)


def test_find_device__the_wrong_tensorrt__is_the_cpu_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device, "provider_problem", lambda: "it needs TensorRT 10")
    assert find_device(Target.TENSORRT, GRAPH).missing == "it needs TensorRT 10"


def test_find_device__a_model_that_cannot_be_loaded__is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> None:
        raise MlctlError(ErrorCode.UNSUPPORTED_MODEL, "no model")

    monkeypatch.setattr(device, "open_session", broken)
    with pytest.raises(MlctlError, match="no model"):
        find_device(Target.CUDA, GRAPH)
