"""CUDA graphs by ONNX Runtime's bindings, with the host's memory as the device's.

ONNX Runtime on the CPU binds as it does on a GPU, and captures nothing; the stand-in below holds
every run of a graph to the addresses of its first one, as a captured graph would.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlctl.bundle.manifest import MODEL_NAME, Batching
from mlctl.bundle.tensors import Datatype, Signature, TensorSpec
from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.layout.scorable import open_scorer
from mlctl.services.model import cuda_graphs, scorer
from mlctl.services.model.cuda_graphs import CudaGraphSession, open_cuda_graphs
from mlctl.services.model.padding import RowPaddedSession
from mlctl.services.model.run_errors import RunError
from mlctl.services.model.scorer import Scorer
from mlctl.services.model.session import OnnxSession, Session, open_session
from mlctl.services.online.settings import ServerSettings
from tests.support import tables

BUCKETS = (1, 4, 16)
BATCHING = Batching(max_rows=16, buckets=BUCKETS, row_independent=True)


class Recorded:
    """A binding that remembers the addresses of what was bound to it."""

    def __init__(self, real: Any) -> None:
        self.real = real
        self.places: dict[str, int] = {}

    def bind_ortvalue_input(self, name: str, value: Any) -> None:
        self.places[name] = value.data_ptr()
        self.real.bind_ortvalue_input(name, value)

    def bind_ortvalue_output(self, name: str, value: Any) -> None:
        self.places[name] = value.data_ptr()
        self.real.bind_ortvalue_output(name, value)


class Capturing(OnnxSession):
    """ONNX Runtime on the CPU, which holds each graph to its first addresses."""

    def __init__(self, model: Path) -> None:
        inner = open_session(model)
        assert isinstance(inner, OnnxSession)
        super().__init__(inner._inner, "cuda")
        self.captured: dict[str, dict[str, int]] = {}
        self.replays: list[str] = []
        self.plain: list[int] = []
        self.fails = False

    def run(self, inputs: Any) -> dict[str, np.ndarray]:
        self.plain.append(inputs["x"].size // 4 if "x" in inputs else 0)
        return super().run(inputs)

    def binding(self) -> Any:
        return Recorded(super().binding())

    def run_bound(self, binding: Any, options: Any) -> None:
        if self.fails:
            raise RunError("the stream does not capture")
        number = options.get_run_config_entry("gpu_graph_id")
        assert self.captured.setdefault(number, dict(binding.places)) == binding.places
        self.replays.append(number)
        super().run_bound(binding.real, options)


@pytest.fixture
def model(bundle: VerifiedBundle) -> Path:
    return bundle.path(MODEL_NAME)


def graphed(bundle: VerifiedBundle, inner: Capturing) -> CudaGraphSession:
    return CudaGraphSession(inner, bundle.manifest.signature, BUCKETS, device="cpu")


def test_batch_sizes__taking_turns__are_replayed_each_from_its_own_memory(
    bundle: VerifiedBundle, model: Path
) -> None:
    inner, plain = Capturing(model), open_session(model)
    session = graphed(bundle, inner)
    given = [tables.inputs(BUCKETS[i % 3], i) for i in range(12)]
    # Kept until all were run: an answer in memory that is used again would change.
    answers = [session.run({"x": x})["y"] for x in given]
    for x, answer in zip(given, answers, strict=True):
        assert answer.tobytes() == plain.run({"x": x})["y"].tobytes()
    assert inner.replays == ["1", "2", "3"] * 4
    places = [place for bound in inner.captured.values() for place in bound.values()]
    assert len(set(places)) == 6
    assert inner.plain == []


def test_batch_size__not_of_the_bundle__runs_without_a_graph(
    bundle: VerifiedBundle, model: Path
) -> None:
    inner, plain = Capturing(model), open_session(model)
    session = graphed(bundle, inner)
    for rows in (3, 4, 17):
        x = tables.inputs(rows, rows)
        assert session.run({"x": x})["y"].tobytes() == plain.run({"x": x})["y"].tobytes()
    assert inner.plain == [3, 17]
    assert inner.replays == ["2"]


def test_inputs__not_contiguous__are_copied_as_they_read(
    bundle: VerifiedBundle, model: Path
) -> None:
    x = np.asfortranarray(tables.inputs(4, 1))
    session = graphed(bundle, Capturing(model))
    np.testing.assert_array_equal(
        session.run({"x": x})["y"], open_session(model).run({"x": x.copy("C")})["y"]
    )


@pytest.mark.parametrize(
    "inputs",
    [
        {"x": np.zeros((4, 4), np.float64)},
        {"x": np.zeros((4, 4), np.int32)},
        {"x": np.zeros((4, 1), np.float32)},
        {"z": np.zeros((4, 4), np.float32)},
        {"x": np.zeros((4, 4), np.float32), "z": np.zeros((4, 4), np.float32)},
        {"x": np.zeros((), np.float32)},
    ],
)
def test_inputs__not_of_the_signature__are_rejected_by_the_runtime(
    bundle: VerifiedBundle, model: Path, inputs: dict[str, np.ndarray]
) -> None:
    inner = Capturing(model)
    session = graphed(bundle, inner)
    with pytest.raises(RunError):
        session.run(inputs)
    assert inner.replays == []


def test_graph__cannot_be_captured__is_an_error_with_the_remedy(
    bundle: VerifiedBundle, model: Path
) -> None:
    inner = Capturing(model)
    inner.fails = True
    with pytest.raises(MlctlError, match="4 rows cannot be captured: the stream") as caught:
        graphed(bundle, inner).run({"x": tables.inputs(4, 0)})
    assert caught.value.code is ErrorCode.UNSUPPORTED_MODEL
    assert "MLCTL_CUDA_GRAPHS" in caught.value.hint


def test_graph__fails_after_it_was_captured__is_a_failed_run(
    bundle: VerifiedBundle, model: Path
) -> None:
    inner = Capturing(model)
    session = graphed(bundle, inner)
    session.run({"x": tables.inputs(4, 0)})
    inner.fails = True
    with pytest.raises(RunError, match="the stream"):
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

    monkeypatch.setattr(cuda_graphs, "open_session", open_here)
    monkeypatch.setattr(scorer, "open_session", open_here)
    return asked


def test_open_graphed__the_runtime_cannot_capture_the_model__is_an_error_with_the_remedy(
    bundle: VerifiedBundle, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = MlctlError(ErrorCode.UNSUPPORTED_MODEL, "it has control flow nodes")
    opened(monkeypatch, model, refusal)
    with pytest.raises(MlctlError, match="control flow") as caught:
        open_cuda_graphs(model, bundle.manifest.signature, BATCHING)
    assert "MLCTL_CUDA_GRAPHS" in caught.value.hint


@pytest.mark.parametrize(("dtype", "shape"), [(Datatype.BYTES, (-1,)), (Datatype.FP32, (-1, -1))])
def test_open_graphed__rows_of_unlike_size__is_unsupported(
    bundle: VerifiedBundle,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    dtype: Datatype,
    shape: tuple[int, ...],
) -> None:
    asked = opened(monkeypatch, model)
    plain = bundle.manifest.signature
    odd = TensorSpec(name="odd", dtype=dtype, shape=shape)
    signature = Signature(inputs=(*plain.inputs, odd), outputs=plain.outputs)
    with pytest.raises(MlctlError, match="'odd'") as caught:
        open_cuda_graphs(model, signature, BATCHING)
    assert caught.value.code is ErrorCode.UNSUPPORTED_MODEL
    assert asked == []


def test_open_graphed__no_cuda__is_unavailable(bundle: VerifiedBundle, model: Path) -> None:
    with pytest.raises(MlctlError, match="built without it") as caught:
        open_cuda_graphs(model, bundle.manifest.signature, BATCHING)
    assert caught.value.code is ErrorCode.PROVIDER_UNAVAILABLE


def test_scorer__on_cuda__pads_to_the_sizes_of_the_bundle_with_graphs_or_without(
    bundle: VerifiedBundle, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = opened(monkeypatch, model)
    for settings, padded in (
        (ServerSettings(provider="cuda", cuda_graphs=True), True),
        (ServerSettings(provider="cuda"), True),
    ):
        scorer = Scorer.open(bundle, settings)
        assert isinstance(scorer._session, RowPaddedSession) is padded
    assert asked == [True, False]


def test_scorer__graphs_on_another_provider__is_rejected(bundle: VerifiedBundle) -> None:
    with pytest.raises(MlctlError, match="is for the provider cuda, not for cpu") as caught:
        Scorer.open(bundle, ServerSettings(provider="cpu", cuda_graphs=True))
    assert caught.value.code is ErrorCode.INVALID_INPUT


def test_batch_job__on_cuda__captures_and_pads_nothing(
    bundle: VerifiedBundle, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = opened(monkeypatch, model)
    monkeypatch.setenv("MLCTL_PROVIDER", "cuda")
    monkeypatch.setenv("MLCTL_CUDA_GRAPHS", "1")
    scorer = open_scorer(bundle)
    assert asked == [False]
    assert not isinstance(scorer._session, RowPaddedSession)


@pytest.mark.parametrize(("provider", "rows"), [("tensorrt", 32), ("cpu", 64)])
def test_batch_job__on_tensorrt__takes_no_more_rows_than_the_engine_was_built_for(
    bundle: VerifiedBundle, monkeypatch: pytest.MonkeyPatch, provider: str, rows: int
) -> None:
    def open_here(model: Path, *_: object, **__: object) -> Session:
        session = open_session(model)
        session.provider = provider
        return session

    monkeypatch.setattr(scorer, "open_session", open_here)
    monkeypatch.setenv("MLCTL_PROVIDER", provider)
    assert open_scorer(bundle, 64).max_rows == rows
    assert (open_scorer(bundle).max_rows > 32) is (provider == "cpu")


@pytest.mark.gpu
def test_gpu__with_graphs__answers_as_it_does_without(bundle: VerifiedBundle, model: Path) -> None:
    session = open_cuda_graphs(model, bundle.manifest.signature, BATCHING)
    plain = open_session(model, "cuda")
    for turn in range(12):
        x = tables.inputs((*BUCKETS, 3)[turn % 4], turn)
        answer, want = session.run({"x": x})["y"], plain.run({"x": x})["y"]
        np.testing.assert_allclose(answer, want, rtol=1e-5, atol=1e-6)
    assert set(session._graphs) == set(BUCKETS)
