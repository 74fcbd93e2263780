import copy
import ctypes
import gc
import logging
from enum import Enum
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bundle.errors import ErrorCode, MlctlError
from bundle.home import HOME_VARIABLE
from bundle.manifest import Batching
from services.tensorrt import session as module
from services.tensorrt.build import build_engine
from services.tensorrt.cache import TIMING_NAME, timing_directory
from services.tensorrt.cuda import Driver, Gpu
from services.tensorrt.key import Device
from services.tensorrt.options import EngineOptions, Flavour
from services.tensorrt.process import Progress
from services.tensorrt.session import EngineSession, prepare_engine
from tests.services.tensorrt.graphs import scaling
from tests.services.tensorrt.test_cuda import HostDriver

DataType = Enum("DataType", "FLOAT HALF BF16 FP8")
Mode = Enum("Mode", "INPUT OUTPUT")
Location = Enum("Location", "DEVICE HOST")
TRT = SimpleNamespace(TensorIOMode=Mode, TensorLocation=Location)
MAX_ROWS = 4
DEVICE = Device("NVIDIA H200", "9.0", "580.65.06", "11.4.0.106")


class DoublingEngine:
    """What TensorRT's engine and context say and do, for `y = 2 x` over [1..4, 3]."""

    num_io_tensors = 2

    def __init__(
        self,
        dtype: DataType = DataType.FLOAT,
        output: tuple[int, ...] | None = None,
        location: Location = Location.DEVICE,
        library: HostDriver | None = None,
        contexts: int = 9,
    ) -> None:
        self.dtype = dtype
        self.location = location
        self.output = output
        self.shape: tuple[int, ...] = ()
        self.addresses: dict[str, int] = {}
        self.library = library or HostDriver()
        self.contexts = contexts
        self.runs = 0

    def create_execution_context(self) -> "DoublingEngine | None":
        self.contexts -= 1
        if self.contexts < 0:
            return None
        context = copy.copy(self)
        context.addresses = {}
        return context

    def get_tensor_name(self, index: int) -> str:
        return "xy"[index]

    def get_tensor_dtype(self, _: str) -> DataType:
        return self.dtype

    def get_tensor_location(self, _: str) -> Location:
        return self.location

    def get_tensor_mode(self, name: str) -> Mode:
        return Mode.INPUT if name == "x" else Mode.OUTPUT

    def get_tensor_profile_shape(self, _: str, __: int) -> list[tuple[int, ...]]:
        return [(1, 3), (2, 3), (MAX_ROWS, 3)]

    def set_input_shape(self, _: str, shape: tuple[int, ...]) -> bool:
        self.shape = shape
        return len(shape) == 2 and 1 <= shape[0] <= MAX_ROWS and shape[1] == 3

    def infer_shapes(self) -> list[str]:
        return []

    def get_tensor_shape(self, _: str) -> tuple[int, ...]:
        return self.output or self.shape

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.addresses[name] = address
        return True

    def execute_async_v3(self, stream: int) -> bool:
        # As TensorRT: a graph has the sizes and addresses that hold when it is captured.
        size, addresses = int(np.prod(self.shape)) * 4, dict(self.addresses)

        def work() -> None:
            x = np.frombuffer(ctypes.string_at(addresses["x"], size), np.float32)
            ctypes.memmove(addresses["y"], (2 * x).tobytes(), size)

        # What a shape needs is settled by its first run, which does not capture.
        if self.library.capturing is not None and self.runs == 0:
            return False
        self.runs += 1
        self.library.queue(work)
        return stream != 0


def session(
    library: HostDriver | None = None, captured: tuple[int, ...] = (), **engine: Any
) -> EngineSession:
    library = library or HostDriver()
    made = DoublingEngine(library=library, **engine)
    return EngineSession(TRT, made, Gpu(Driver(library)), captured)


def ask(opened: EngineSession, rows: int, seed: int) -> None:
    x = np.random.default_rng(seed).random((rows, 3), dtype=np.float32)
    np.testing.assert_array_equal(opened.run({"x": x})["y"], 2 * x)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model in an empty home, on a machine that claims a GPU but builds with TensorRT-RTX."""
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    monkeypatch.setattr(module, "require_device", lambda *_: DEVICE)
    monkeypatch.setattr(module, "build_engine", partial(build_engine, flavour=Flavour.RTX))
    return scaling(tmp_path / "model.onnx")


def test_an_engine_is_built_once_for_a_model_and_its_batches(model: Path) -> None:
    table = Batching(max_rows=8, buckets=(1, 8), row_independent=True)
    steps: list[Progress] = []
    path = prepare_engine(model, table, EngineOptions(), steps.append)
    assert path.stat().st_size > 0
    assert (timing_directory(DEVICE) / TIMING_NAME).stat().st_size > 0
    told = len(steps)
    assert told > 0
    assert prepare_engine(model, table, EngineOptions(), steps.append) == path
    assert len(steps) == told
    others = {prepare_engine(model, None, EngineOptions())}
    scaling(model, factor=3.0)
    others.add(prepare_engine(model, table, EngineOptions()))
    assert len(others | {path}) == 3


def test_runs_every_batch_size_with_buffers_that_grow() -> None:
    opened = session()
    assert opened.provider == "tensorrt-raw"
    for rows in (2, 4, 1):
        x = np.random.default_rng(rows).random((rows, 3), dtype=np.float32)
        np.testing.assert_array_equal(opened.run({"x": x})["y"], 2 * x)


def test_answers_outlive_the_next_run_and_memory_here_is_pinned_once() -> None:
    library = HostDriver()
    opened = session(library)
    given = [np.random.default_rng(seed).random((4, 3), dtype=np.float32) for seed in range(4)]
    answers = [opened.run({"x": x})["y"] for x in given]
    for x, answer in zip(given, answers, strict=True):
        np.testing.assert_array_equal(answer, 2 * x)
        assert answer.ctypes.data not in library.memory
    # Here and there, for `x` and `y`.
    assert len(library.memory) == 4


def test_takes_an_array_that_is_not_contiguous() -> None:
    x = np.arange(12, dtype=np.float32).reshape(4, 3)[::2]
    np.testing.assert_array_equal(session().run({"x": x})["y"], 2 * x)


def test_a_shape_outside_of_the_profile_is_the_callers_fault() -> None:
    with pytest.raises(MlctlError, match=r"shape is \[5, 3\], .* \[1, 3\] to \[4, 3\]") as caught:
        session().run({"x": np.zeros((5, 3), np.float32)})
    assert caught.value.code is ErrorCode.INVALID_INPUT


def test_nothing_is_cast_silently() -> None:
    with pytest.raises(MlctlError, match="dtype is float64, the engine takes float32"):
        session().run({"x": np.zeros((1, 3))})


def test_outputs_whose_shape_depends_on_values_are_refused() -> None:
    with pytest.raises(MlctlError, match="depends on the values") as caught:
        session(output=(-1, 3)).run({"x": np.zeros((1, 3), np.float32)})
    assert "provider tensorrt" in caught.value.hint


def test_inputs_that_decide_shapes_are_refused() -> None:
    with pytest.raises(MlctlError, match="'x' decides the shape") as caught:
        session(location=Location.HOST)
    assert caught.value.code is ErrorCode.UNSUPPORTED_MODEL


def test_half_types_keep_their_bits_and_unknown_ones_are_refused() -> None:
    with pytest.raises(MlctlError, match="the engine takes uint16"):
        session(dtype=DataType.BF16).run({"x": np.zeros((1, 3), np.float32)})
    with pytest.raises(MlctlError, match="FP8") as caught:
        session(dtype=DataType.FP8)
    assert caught.value.code is ErrorCode.UNSUPPORTED_MODEL


def test_each_size_is_captured_after_its_first_run_and_replayed_from_its_own_memory() -> None:
    library = HostDriver()
    opened = session(library, (1, 4))
    for seed in range(5):
        for rows in (4, 1):
            ask(opened, rows, seed)
    assert library.launches == 8
    assert len(library.graphs) == 2
    # Here and there, for `x` and `y`, of both sizes.
    assert len(library.memory) == 8


def test_other_sizes_and_forms_run_beside_the_graphs() -> None:
    library = HostDriver()
    opened = session(library, (1, 4))
    for seed in range(3):
        for rows in (3, 4, 2):
            ask(opened, rows, seed)
    for wrong in (np.zeros((4, 3)), np.zeros((4, 2), np.float32), np.zeros((), np.float32)):
        with pytest.raises(MlctlError) as caught:
            opened.run({"x": wrong})
        assert caught.value.code is ErrorCode.INVALID_INPUT
    ask(opened, 4, 9)
    assert library.launches == 3


@pytest.mark.parametrize("contexts", [9, 1])
def test_without_a_graph_or_memory_for_one_all_is_run_plainly(
    contexts: int, caplog: pytest.LogCaptureFixture
) -> None:
    library = HostDriver()
    library.captures = False
    opened = session(library, (1, 4), contexts=contexts)
    with caplog.at_level(logging.WARNING, "mlctl.graphs"):
        for seed, rows in enumerate((4, 4, 1)):
            ask(opened, rows, seed)
    assert library.launches == 0
    assert library.graphs == {}
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "from now on without CUDA graphs"
    ]


def test_a_launch_that_fails_is_answered_plainly_and_gives_the_memory_back() -> None:
    library = HostDriver()
    opened = session(library, (1, 4))
    for seed, rows in enumerate((4, 1)):
        ask(opened, rows, seed)
    held = len(library.memory)
    library.fails.add("cuGraphLaunch")
    ask(opened, 4, 7)
    gc.collect()
    assert library.graphs == {}
    assert len(library.memory) < held
    ask(opened, 1, 8)


def test_no_memory_for_a_context_is_told() -> None:
    with pytest.raises(MlctlError, match="no execution context") as caught:
        session(contexts=0)
    assert caught.value.code is ErrorCode.PROVIDER_UNAVAILABLE
