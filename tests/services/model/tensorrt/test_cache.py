from dataclasses import replace
from pathlib import Path

import pytest

from mlctl.core.entries import Key, hash_key, read_record
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.home import HOME_VARIABLE
from mlctl.services.model.tensorrt.machine import Gpu
from mlctl.services.model.tensorrt.process import Cause, WorkerError
from mlctl.services.model.tensorrt.profile import Profile, Shapes
from mlctl.services.model.tensorrt.provider import (
    Device,
    engine_key,
    fetch_engine,
    model_sha256,
    provider_options,
    timing_directory,
)
from tests.support.clock import ManualClock

MODEL = Path("model.onnx")
DEVICE = Device(Gpu("NVIDIA H200", "9.0", "580.65.06"), "10.16.1.11", "1.31.1")
FOREIGN = Device(Gpu("NVIDIA L4", "8.9", "580.65.06"), "10.16.1.11", "1.31.1")
ENGINE_NAME = "node_0_sm90.engine"
PROFILE = {"x": Shapes((1, 3), (8, 3), (32, 3))}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))


class Builder:
    """Writes an engine and counts how often it was asked to."""

    def __init__(self, clock: ManualClock | None = None) -> None:
        self.builds = 0
        self._clock = clock

    def __call__(self, directory: Path) -> None:
        self.builds += 1
        (directory / ENGINE_NAME).write_bytes(b"engine")
        if self._clock is not None:
            self._clock.advance(42.0)


def key(device: Device = DEVICE) -> Key:
    return engine_key("a" * 64, device, {})


def test_fetch_engine__second_time__is_reused() -> None:
    clock = ManualClock()
    build = Builder(clock)
    first = fetch_engine(MODEL, key(), build, clock)
    again = fetch_engine(MODEL, key(), build, clock)
    assert (first.reused, again.reused, build.builds) == (False, True, 1)
    record = read_record(again.root)
    assert record is not None
    assert record.seconds == 42.0
    assert record.key["name"] == "NVIDIA H200"
    assert list(record.files) == [ENGINE_NAME]


def test_fetch_engine__another_gpu__builds_its_own() -> None:
    build = Builder()
    mine, foreign = (fetch_engine(MODEL, key(device), build) for device in (DEVICE, FOREIGN))
    assert build.builds == 2
    assert mine.root != foreign.root


@pytest.mark.parametrize("damage", [b"engin", b"Engine", None])
def test_fetch_engine__damaged_file__builds_again(damage: bytes | None) -> None:
    build = Builder()
    engine = fetch_engine(MODEL, key(), build).root / ENGINE_NAME
    if damage is None:
        engine.unlink()
    else:
        engine.write_bytes(damage)
    assert not fetch_engine(MODEL, key(), build).reused
    assert build.builds == 2
    assert engine.read_bytes() == b"engine"


@pytest.mark.parametrize(
    ("cause", "code", "hint"),
    [
        (Cause.REJECTED, ErrorCode.UNSUPPORTED_MODEL, "another recipe"),
        (Cause.UNAVAILABLE, ErrorCode.PROVIDER_UNAVAILABLE, "provider cuda"),
        (Cause.CRASHED, ErrorCode.PROVIDER_UNAVAILABLE, "provider cuda"),
        (Cause.TIMED_OUT, ErrorCode.PROVIDER_UNAVAILABLE, "provider cuda"),
    ],
)
def test_fetch_engine__build_fails__leaves_nothing_and_has_a_hint(
    cause: Cause, code: ErrorCode, hint: str
) -> None:
    def fail(directory: Path) -> None:
        (directory / ENGINE_NAME).write_bytes(b"half")
        raise WorkerError(cause, "its own sentence")

    with pytest.raises(MlctlError, match="its own sentence") as caught:
        fetch_engine(MODEL, key(), fail)
    assert caught.value.code is code
    assert hint in caught.value.hint
    assert not fetch_engine(MODEL, key(), Builder()).reused


def test_timing_directory__same_device__is_the_same() -> None:
    directory = timing_directory(DEVICE)
    (directory / "timing.cache").write_bytes(b"timings")
    assert timing_directory(DEVICE) == directory
    assert timing_directory(FOREIGN) != directory
    assert timing_directory(replace(DEVICE, tensorrt="10.13")) != timing_directory(DEVICE)


def name(
    model: str = "a" * 64,
    device: Device = DEVICE,
    profile: Profile = PROFILE,
) -> str:
    return hash_key(engine_key(model, device, profile))


def test_engine_name__same_inputs__is_the_same() -> None:
    assert name() == name(profile=dict(PROFILE))


def test_engine_name__any_input_differs__is_another() -> None:
    others = {
        name(model="b" * 64),
        *(
            name(device=replace(DEVICE, gpu=replace(DEVICE.gpu, **{field: "other"})))
            for field in ("name", "compute_capability", "driver")
        ),
        name(device=replace(DEVICE, tensorrt="10.13")),
        name(device=replace(DEVICE, onnxruntime="1.30")),
        name(profile={"x": Shapes((1, 3), (8, 3), (64, 3))}),
    }
    assert len(others) == 7
    assert name() not in others


@pytest.mark.parametrize("altered", ["model.onnx", "model.onnx.data"])
def test_model_sha256__external_data_changes__is_another(tmp_path: Path, altered: str) -> None:
    files = (tmp_path / "model.onnx", tmp_path / "model.onnx.data")
    for path in files:
        path.write_bytes(b"before")
    before = model_sha256(files)
    assert before == model_sha256(files)
    (tmp_path / altered).write_bytes(b"after")
    assert model_sha256(files) != before


def test_provider_options__profile__sets_caches_and_shapes() -> None:
    assert provider_options(PROFILE, Path("/engines"), Path("/timing")) == {
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": "/engines",
        "trt_timing_cache_enable": "1",
        "trt_timing_cache_path": "/timing",
        "trt_profile_min_shapes": "x:1x3",
        "trt_profile_opt_shapes": "x:8x3",
        "trt_profile_max_shapes": "x:32x3",
    }
