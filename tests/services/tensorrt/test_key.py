from dataclasses import replace
from pathlib import Path

import pytest

from bundle.entries import hash_key
from services.tensorrt.key import Device, engine_key, model_sha256, timing_name
from services.tensorrt.options import EngineFlags
from services.tensorrt.profile import Profile, Shapes

DEVICE = Device("NVIDIA H200", "9.0", "580.65.06", "11.4.0.106")
PROFILE = {"x": Shapes((1, 3), (8, 3), (32, 3))}


def name(
    model: str = "a" * 64,
    device: Device = DEVICE,
    profile: Profile = PROFILE,
    flags: EngineFlags | None = None,
    builder: str = "tensorrt",
) -> str:
    return hash_key(engine_key(model, device, profile, flags or EngineFlags(), builder))


def test_the_same_engine_has_the_same_name() -> None:
    assert name() == name(profile=dict(PROFILE), flags=EngineFlags())


def test_whatever_an_engine_depends_on_changes_its_name() -> None:
    others = {
        name(model="b" * 64),
        *(
            name(device=replace(DEVICE, **{field: "other"}))
            for field in ("name", "compute_capability", "driver", "tensorrt_version")
        ),
        name(profile={"x": Shapes((1, 3), (8, 3), (64, 3))}),
        name(flags=EngineFlags(version_compatible=True)),
        name(flags=EngineFlags(workspace_bytes=1)),
        name(builder="onnxruntime 1.31.1"),
    }
    assert len(others) == 9
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
    assert timing_name(DEVICE) != timing_name(replace(DEVICE, tensorrt_version="10.16.1"))
