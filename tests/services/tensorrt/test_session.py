import ctypes
from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bundle.errors import ErrorCode, MlctlError
from services.tensorrt.cuda import Driver, Gpu
from services.tensorrt.session import EngineSession
from tests.services.tensorrt.test_cuda import HostDriver

DataType = Enum("DataType", "FLOAT HALF BF16 FP8")
Mode = Enum("Mode", "INPUT OUTPUT")
TRT = SimpleNamespace(TensorIOMode=Mode)
MAX_ROWS = 4


class DoublingEngine:
    """What TensorRT's engine and context say and do, for `y = 2 x` over [1..4, 3]."""

    num_io_tensors = 2

    def __init__(
        self, dtype: DataType = DataType.FLOAT, output: tuple[int, ...] | None = None
    ) -> None:
        self.dtype = dtype
        self.output = output
        self.shape: tuple[int, ...] = ()
        self.addresses: dict[str, int] = {}

    def create_execution_context(self) -> "DoublingEngine":
        return self

    def get_tensor_name(self, index: int) -> str:
        return "xy"[index]

    def get_tensor_dtype(self, _: str) -> DataType:
        return self.dtype

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
        size = int(np.prod(self.shape)) * 4
        x = np.frombuffer(ctypes.string_at(self.addresses["x"], size), np.float32)
        ctypes.memmove(self.addresses["y"], (2 * x).tobytes(), size)
        return stream != 0


def session(**engine: Any) -> EngineSession:
    return EngineSession(TRT, DoublingEngine(**engine), Gpu(Driver(HostDriver())))


def test_runs_every_batch_size_with_buffers_that_grow() -> None:
    opened = session()
    assert opened.provider == "tensorrt-raw"
    for rows in (2, 4, 1):
        x = np.random.default_rng(rows).random((rows, 3), dtype=np.float32)
        np.testing.assert_array_equal(opened.run({"x": x})["y"], 2 * x)


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


def test_half_types_keep_their_bits_and_unknown_ones_are_refused() -> None:
    with pytest.raises(MlctlError, match="the engine takes uint16"):
        session(dtype=DataType.BF16).run({"x": np.zeros((1, 3), np.float32)})
    with pytest.raises(MlctlError, match="FP8") as caught:
        session(dtype=DataType.FP8)
    assert caught.value.code is ErrorCode.UNSUPPORTED_MODEL
