"""Captured batches, with the host as the device and a runtime that replays what it captured."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import services.runtime.graphed
import services.runtime.session
from bundle.errors import ErrorCode, MlctlError
from bundle.manifest import MODEL_NAME, Batching
from bundle.tensors import Datatype, Signature, TensorSpec
from bundle.verify import VerifiedBundle
from services.batch.model import open_scorer
from services.runtime.faults import RunError
from services.runtime.graphed import GraphedSession, open_graphed
from services.runtime.padding import RowPaddedSession
from services.runtime.scorer import Scorer
from services.runtime.session import OnnxSession, Session, open_session
from services.settings import Settings
from services.tensorrt.cuda import Driver, Gpu
from tests.services.tensorrt.test_cuda import HostDriver
from tests.support import tables

BUCKETS = (1, 4, 16)
BATCHING = Batching(max_rows=16, buckets=BUCKETS, row_independent=True)


class Recorded:
    """A binding, and all that was bound to it."""

    def __init__(self, real: Any) -> None:
        self.real = real
        self.bound: dict[str, tuple[Any, ...]] = {}

    def bind_input(self, name: str, *place: Any) -> None:
        self.bound[name] = tuple(map(str, place))
        self.real.bind_input(name, *place)

    def bind_output(self, name: str, *place: Any) -> None:
        self.bound[name] = tuple(map(str, place))
        self.real.bind_output(name, *place)


class Capturing(OnnxSession):
    """ONNX Runtime on the CPU, which may only read and write a graph's first addresses."""

    def __init__(self, model: Path) -> None:
        inner = open_session(model)
        assert isinstance(inner, OnnxSession)
        super().__init__(inner._inner, "cuda")
        self.captured: dict[str, dict[str, tuple[Any, ...]]] = {}
        self.replays: list[str] = []
        self.plain: list[int] = []
        self.fails = False

    def run(self, inputs: Any) -> dict[str, np.ndarray]:
        self.plain.append(inputs["x"].size // 4 if "x" in inputs else 0)
        return super().run(inputs)

    def binding(self) -> Any:
        return Recorded(super().binding())

    def run_bound(self, binding: Any, options: Any = None) -> None:
        if self.fails:
            raise RunError("the stream does not capture")
        number = options.get_run_config_entry("gpu_graph_id")
        assert self.captured.setdefault(number, dict(binding.bound)) == binding.bound
        self.replays.append(number)
        super().run_bound(binding.real)


@pytest.fixture
def model(bundle: VerifiedBundle) -> Path:
    return bundle.path(MODEL_NAME)


def graphed(
    bundle: VerifiedBundle, inner: Capturing, library: HostDriver | None = None
) -> GraphedSession:
    gpu = Gpu(Driver(library or HostDriver()))

    def reopen() -> Session:
        # What is given up is free before the model is loaded again.
        assert library is None or not library.memory
        return open_session(bundle.path(MODEL_NAME))

    signature = bundle.manifest.signature
    return GraphedSession(inner, signature, BUCKETS, gpu, reopen, device="cpu")


def test_sizes_that_take_turns_are_replayed_each_from_its_own_memory(
    bundle: VerifiedBundle, model: Path
) -> None:
    inner, library, plain = Capturing(model), HostDriver(), open_session(model)
    session = graphed(bundle, inner, library)
    given = [tables.inputs(BUCKETS[i % 3], i) for i in range(12)]
    # Kept until all were run: an answer in memory that is used again would change.
    answers = [session.run({"x": x})["y"] for x in given]
    for x, answer in zip(given, answers, strict=True):
        assert answer.tobytes() == plain.run({"x": x})["y"].tobytes()
    assert inner.replays == ["1", "2", "3"] * 4
    places = [place[-1] for bound in inner.captured.values() for place in bound.values()]
    assert len(set(places)) == 6
    assert inner.plain == []
    # Here and there, for inputs and outputs, for each size.
    assert len(library.memory) == 12


def test_other_sizes_run_as_they_come_and_that_is_said_once(
    bundle: VerifiedBundle, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    inner, plain = Capturing(model), open_session(model)
    session = graphed(bundle, inner)
    with caplog.at_level(logging.INFO, "mlctl.graphs"):
        for rows in (3, 4, 17):
            x = tables.inputs(rows, rows)
            assert session.run({"x": x})["y"].tobytes() == plain.run({"x": x})["y"].tobytes()
    assert inner.plain == [3, 17]
    assert inner.replays == ["2"]
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    "inputs",
    [
        {"x": np.zeros((4, 4), np.float64)},
        {"x": np.zeros((4, 1), np.float32)},
        {"z": np.zeros((4, 4), np.float32)},
        {"x": np.zeros((4, 4), np.float32), "z": np.zeros((4, 4), np.float32)},
        {"x": np.zeros((), np.float32)},
    ],
)
def test_what_is_not_of_the_models_form_is_told_by_the_runtime(
    bundle: VerifiedBundle, model: Path, inputs: dict[str, np.ndarray]
) -> None:
    inner = Capturing(model)
    session = graphed(bundle, inner)
    with pytest.raises(RunError):
        session.run(inputs)
    assert inner.replays == []


def test_a_graph_that_fails_is_the_last_one_and_its_batch_is_answered(
    bundle: VerifiedBundle, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    inner, library, plain = Capturing(model), HostDriver(), open_session(model)
    session = graphed(bundle, inner, library)
    x = tables.inputs(4, 0)
    session.run({"x": x})
    inner.fails = True
    for _ in range(2):
        assert session.run({"x": x})["y"].tobytes() == plain.run({"x": x})["y"].tobytes()
    assert inner.replays == ["2"]
    # A session whose stream may be stuck is asked no more.
    assert inner.plain == []
    assert [record.getMessage() for record in caplog.records] == [
        "from now on without CUDA graphs: the stream does not capture"
    ]
    assert not library.memory


def test_a_device_without_memory_for_it_runs_without_graphs(
    bundle: VerifiedBundle, model: Path
) -> None:
    inner = Capturing(model)
    session = graphed(bundle, inner, HostDriver(limit=8))
    assert session.run({"x": tables.inputs(4, 0)})["y"].shape[0] == 4
    assert inner.replays == []


def test_a_failure_that_leaves_no_session_is_the_runtimes(
    bundle: VerifiedBundle, model: Path
) -> None:
    def reopen() -> Session:
        raise MlctlError(ErrorCode.UNSUPPORTED_MODEL, "ONNX Runtime cannot load it")

    inner = Capturing(model)
    inner.fails = True
    gpu = Gpu(Driver(HostDriver()))
    session = GraphedSession(inner, bundle.manifest.signature, BUCKETS, gpu, reopen, device="cpu")
    with pytest.raises(RunError, match="cannot load it"):
        session.run({"x": tables.inputs(4, 0)})


def opened(
    monkeypatch: pytest.MonkeyPatch, model: Path, refusal: Exception | None = None
) -> list[bool]:
    """The `graphs` of all calls of `open_session`, which opens on the CPU or refuses graphs."""
    asked: list[bool] = []

    def open_here(
        path: Path, provider: str, _threads: int = 1, *, graphs: bool = False, **_: Any
    ) -> Session:
        assert provider == "cuda"
        asked.append(graphs)
        if graphs and refusal is not None:
            raise refusal
        return Capturing(model) if graphs else open_session(path)

    monkeypatch.setattr("services.runtime.graphed.open_session", open_here)
    monkeypatch.setattr("services.runtime.scorer.open_session", open_here)
    library = HostDriver()
    monkeypatch.setattr(services.runtime.graphed, "Driver", lambda: Driver(library))
    return asked


def test_a_model_that_cannot_be_captured_runs_without_graphs(
    bundle: VerifiedBundle,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    refusal = MlctlError(ErrorCode.UNSUPPORTED_MODEL, "it has control flow nodes")
    asked = opened(monkeypatch, model, refusal)
    session = open_graphed(model, bundle.manifest.signature, BATCHING)
    assert isinstance(session, OnnxSession)
    assert asked == [True, False]
    assert "it has control flow nodes" in caplog.text


@pytest.mark.parametrize(("dtype", "shape"), [(Datatype.BYTES, (-1,)), (Datatype.FP32, (-1, -1))])
def test_rows_of_unlike_size_are_not_captured(
    bundle: VerifiedBundle,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    dtype: Datatype,
    shape: tuple[int, ...],
) -> None:
    asked = opened(monkeypatch, model)
    plain = bundle.manifest.signature
    odd = TensorSpec(name="odd", dtype=dtype, shape=shape)
    open_graphed(model, Signature(inputs=(*plain.inputs, odd), outputs=plain.outputs), BATCHING)
    assert asked == [False]


def test_where_no_cuda_is_that_is_told(bundle: VerifiedBundle, model: Path) -> None:
    with pytest.raises(MlctlError, match="built without it") as caught:
        open_graphed(model, bundle.manifest.signature, BATCHING)
    assert caught.value.code is ErrorCode.PROVIDER_UNAVAILABLE


def test_online_batches_are_padded_to_what_is_warm_with_graphs_or_without(
    bundle: VerifiedBundle, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = opened(monkeypatch, model)
    for settings, padded in (
        (Settings(provider="cuda", cuda_graphs="auto"), True),
        (Settings(provider="cuda"), True),
        (Settings(provider="cuda", pad_rows=False), False),
    ):
        scorer = Scorer.open(bundle, settings)
        assert isinstance(scorer._session, RowPaddedSession) is padded
    assert asked == [True, False, False]


@pytest.mark.parametrize("given", ["auto", "off"])
def test_raw_tensorrt_is_asked_to_capture_the_sizes_of_the_bundle(
    bundle: VerifiedBundle, monkeypatch: pytest.MonkeyPatch, given: Literal["auto", "off"]
) -> None:
    asked = []

    def engine(model: Path, batching: Batching, _: object, *, graphs: bool) -> Session:
        asked.append((batching.buckets, graphs))
        return open_session(model)

    monkeypatch.setattr(services.runtime.session, "open_engine", engine)
    Scorer.open(bundle, Settings(provider="tensorrt-raw", cuda_graphs=given))
    assert asked == [(bundle.manifest.batching.buckets, given == "auto")]


def test_a_batch_job_captures_and_pads_nothing(
    bundle: VerifiedBundle, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = opened(monkeypatch, model)
    monkeypatch.setenv("MLCTL_PROVIDER", "cuda")
    monkeypatch.setenv("MLCTL_CUDA_GRAPHS", "auto")
    scorer = open_scorer(bundle)
    assert asked == [False]
    assert not isinstance(scorer._session, RowPaddedSession)


@pytest.mark.parametrize(("provider", "rows"), [("tensorrt-raw", 32), ("cpu", 64)])
def test_a_batch_job_asks_an_engine_for_no_more_than_it_was_built_for(
    bundle: VerifiedBundle, monkeypatch: pytest.MonkeyPatch, provider: str, rows: int
) -> None:
    def engine(model: Path, *_: object, **__: object) -> Session:
        session = open_session(model)
        session.provider = provider
        return session

    monkeypatch.setattr(services.runtime.session, "open_engine", engine)
    monkeypatch.setenv("MLCTL_PROVIDER", provider)
    assert open_scorer(bundle, 64).max_rows == rows
    assert (open_scorer(bundle).max_rows > 32) is (provider == "cpu")


@pytest.mark.gpu
def test_a_gpu_replays_what_it_answers_without_graphs(
    bundle: VerifiedBundle, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Driver()
    session = open_graphed(model, bundle.manifest.signature, BATCHING)
    assert isinstance(session, GraphedSession)
    plain = open_session(model, "cuda")
    for turn in range(12):
        x = tables.inputs((*BUCKETS, 3)[turn % 4], turn)
        answer, want = session.run({"x": x})["y"], plain.run({"x": x})["y"]
        np.testing.assert_allclose(answer, want, rtol=1e-5, atol=1e-6)
    assert "without CUDA graphs" not in caplog.text
    assert set(session._stagings) == set(BUCKETS)
