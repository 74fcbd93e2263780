"""What only a machine with an NVIDIA GPU can prove; `pytest -m gpu` runs it."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bundle.errors import ErrorCode, MlctlError
from bundle.home import HOME_VARIABLE
from bundle.manifest import MODEL_NAME, Batching
from bundle.verify import VerifiedBundle
from services.runtime.session import Session, open_session
from services.tensorrt.build import build_engine
from services.tensorrt.cuda import Driver, Gpu
from services.tensorrt.installed import provider_problem
from services.tensorrt.options import EngineFlags, EngineOptions, HardwareCompatibility
from services.tensorrt.probe import probe_device
from services.tensorrt.process import Cause, WorkerError
from services.tensorrt.profile import make_profile
from services.tensorrt.session import EngineSession
from tests.services.tensorrt.graphs import convolution
from tests.support.bundles import expected

pytestmark = pytest.mark.gpu

TABLE = Batching(max_rows=32, buckets=(1, 8, 32), row_independent=True)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    probe_device.cache_clear()
    yield tmp_path / "home"
    probe_device.cache_clear()


@pytest.fixture
def tensorrt() -> None:
    """TensorRT and a GPU, or a failure that says what is missing."""
    probe = probe_device()
    assert probe.device is not None, f"these tests need TensorRT on a GPU: {probe.reason}"


def answers(session: Session, rows: int) -> None:
    x = np.random.default_rng(rows).random((rows, 4), dtype=np.float32)
    np.testing.assert_allclose(session.run({"x": x})["y"], expected(x), rtol=1e-5, atol=1e-5)


def engines(home: Path) -> dict[Path, int]:
    found = (home / "cache" / "tensorrt" / "engines").rglob("*")
    return {path: path.stat().st_mtime_ns for path in found if path.is_file()}


def test_arrays_go_to_the_gpu_and_back() -> None:
    gpu = Gpu(Driver())
    sent = np.random.default_rng(0).random((256, 1024), dtype=np.float32)
    buffer = gpu.allocate(sent.nbytes)
    gpu.upload(sent, buffer)
    received = np.zeros_like(sent)
    gpu.download(buffer, received)
    gpu.synchronize()
    np.testing.assert_array_equal(received, sent)


def test_cuda_answers_like_the_model(bundle: VerifiedBundle) -> None:
    Driver()
    session = open_session(bundle.path(MODEL_NAME), "cuda")
    assert session.provider == "cuda"
    answers(session, 3)


@pytest.mark.usefixtures("tensorrt")
def test_raw_answers_like_the_model_at_every_bucket_and_reuses_its_engine(
    bundle: VerifiedBundle, home: Path
) -> None:
    model = bundle.path(MODEL_NAME)
    session = open_session(model, "tensorrt-raw", batching=TABLE)
    for rows in (*TABLE.buckets, 5):
        answers(session, rows)
    before = engines(home)
    assert before
    answers(open_session(model, "tensorrt-raw", batching=TABLE), 8)
    assert engines(home) == before
    assert any((home / "cache" / "tensorrt" / "timing").rglob("timing.cache"))


@pytest.mark.usefixtures("tensorrt")
def test_raw_replays_every_bucket_from_a_graph_and_runs_the_rest(
    bundle: VerifiedBundle, caplog: pytest.LogCaptureFixture
) -> None:
    model = bundle.path(MODEL_NAME)
    with caplog.at_level("WARNING", "mlctl.graphs"):
        session = open_session(model, "tensorrt-raw", batching=TABLE, graphs=True)
        for rows in (*TABLE.buckets, 5) * 3:
            answers(session, rows)
    assert isinstance(session, EngineSession)
    assert sorted(session.graphs) == list(TABLE.buckets)
    assert caplog.records == []


@pytest.mark.usefixtures("tensorrt")
def test_more_rows_than_the_engine_takes_are_refused(bundle: VerifiedBundle) -> None:
    session = open_session(bundle.path(MODEL_NAME), "tensorrt-raw", batching=TABLE)
    with pytest.raises(MlctlError, match=r"the engine takes \[1, 4\] to \[32, 4\]") as caught:
        answers(session, 33)
    assert caught.value.code is ErrorCode.INVALID_INPUT
    answers(session, 32)


@pytest.mark.usefixtures("tensorrt")
@pytest.mark.parametrize(
    "flags",
    [
        EngineFlags(hardware_compatibility=HardwareCompatibility.AMPERE_PLUS),
        EngineFlags(hardware_compatibility=HardwareCompatibility.SAME_COMPUTE_CAPABILITY),
        EngineFlags(workspace_bytes=1 << 28),
    ],
)
def test_flags_make_engines_that_run(bundle: VerifiedBundle, flags: EngineFlags) -> None:
    options = EngineOptions(flags)
    model = bundle.path(MODEL_NAME)
    answers(open_session(model, "tensorrt-raw", batching=TABLE, engine=options), 8)


@pytest.mark.usefixtures("tensorrt")
def test_a_build_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    model = convolution(tmp_path / MODEL_NAME)
    profile = make_profile({"x": (-1, 1, 8, 8)}, TABLE)
    with pytest.raises(WorkerError) as caught:
        build_engine(model, tmp_path / "engine", profile, EngineOptions(build_timeout_s=0.1))
    assert caught.value.cause is Cause.TIMED_OUT


@pytest.mark.usefixtures("tensorrt")
def test_the_provider_answers_like_the_model_and_reuses_its_engine(
    bundle: VerifiedBundle, home: Path
) -> None:
    if problem := provider_problem():
        pytest.skip(problem)
    model = bundle.path(MODEL_NAME)
    session = open_session(model, "tensorrt", batching=TABLE)
    assert session.provider == "tensorrt"
    for rows in (*TABLE.buckets, 5):
        answers(session, rows)
    before = engines(home)
    assert any(path.suffix == ".engine" for path in before)
    answers(open_session(model, "tensorrt", batching=TABLE), 8)
    assert engines(home) == before
