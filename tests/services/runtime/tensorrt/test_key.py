from dataclasses import replace
from pathlib import Path

import pytest

from bundle.entries import hash_key
from services.runtime.tensorrt.devices import Gpu
from services.runtime.tensorrt.key import Device, engine_key, model_sha256, timing_name
from services.runtime.tensorrt.profile import Profile, Shapes

GPU = Gpu("NVIDIA H200", "9.0", "580.65.06")
DEVICE = Device(GPU, "10.16.1.11", "1.31.1")
PROFILE = {"x": Shapes((1, 3), (8, 3), (32, 3))}


def name(
    model: str = "a" * 64,
    device: Device = DEVICE,
    profile: Profile = PROFILE,
    workspace_bytes: int | None = None,
) -> str:
    return hash_key(engine_key(model, device, profile, workspace_bytes))


def test_the_same_engine_has_the_same_name() -> None:
    assert name() == name(profile=dict(PROFILE))


def test_whatever_an_engine_depends_on_changes_its_name() -> None:
    others = {
        name(model="b" * 64),
        *(
            name(device=replace(DEVICE, gpu=replace(GPU, **{field: "other"})))
            for field in ("name", "compute_capability", "driver")
        ),
        name(device=replace(DEVICE, tensorrt="10.13")),
        name(device=replace(DEVICE, onnxruntime="1.30")),
        name(profile={"x": Shapes((1, 3), (8, 3), (64, 3))}),
        name(workspace_bytes=1),
    }
    assert len(others) == 8
    assert name() not in others


@pytest.mark.parametrize("altered", ["model.onnx", "model.onnx.data"])
def test_the_models_digest_covers_its_data(tmp_path: Path, altered: str) -> None:
    files = (tmp_path / "model.onnx", tmp_path / "model.onnx.data")
    for path in files:
        path.write_bytes(b"before")
    before = model_sha256(files)
    assert before == model_sha256(files)
    (tmp_path / altered).write_bytes(b"after")
    assert model_sha256(files) != before


def test_timings_are_kept_apart_by_gpu_and_version() -> None:
    assert timing_name(DEVICE) == timing_name(replace(DEVICE))
    assert timing_name(DEVICE) != timing_name(replace(DEVICE, tensorrt="10.13"))
