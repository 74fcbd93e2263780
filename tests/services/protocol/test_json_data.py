import tracemalloc
from typing import Any

import numpy as np
import pytest

from mlctl.bundle.tensors import Datatype, TensorSpec
from mlctl.core.errors import MlctlError
from mlctl.services.protocol.json_data import decode_data, encode_data
from mlctl.services.protocol.wire import declare


def spec_of(dtype: str) -> TensorSpec:
    return TensorSpec(name="t", dtype=Datatype(dtype), shape=(-1,))


def decode(dtype: str, data: list[object]) -> np.ndarray:
    declared = declare({"t": spec_of(dtype)}, "t", dtype, [len(data)])
    return decode_data(declared, data)


@pytest.mark.parametrize(
    ("dtype", "data"),
    [
        ("BOOL", [True, False]),
        ("UINT8", [0, 255]),
        ("INT8", [-128, 127]),
        ("UINT64", [0, (1 << 64) - 1]),
        ("INT64", [-(1 << 63), (1 << 63) - 1]),
        ("FP16", [1.5, -65504]),
        ("FP32", [1.5, 2]),
        ("FP64", [0.1, 100000000000000000000]),
        ("BYTES", ["grün", ""]),
        ("INT32", []),
        ("BYTES", []),
    ],
)
def test_json_data__each_datatype__is_read_back(dtype: str, data: list[object]) -> None:
    array = decode(dtype, data)
    assert array.dtype == np.dtype(Datatype(dtype).numpy_name)
    assert list(encode_data(spec_of(dtype), array)) == data


@pytest.mark.parametrize(
    ("dtype", "data", "message"),
    [
        ("INT64", [1.5], "not of datatype INT64"),
        ("INT64", ["1"], "not of datatype"),
        ("INT64", [1 << 63], "outside"),
        ("INT64", [1 << 70], "outside"),
        ("UINT64", [-1, (1 << 64) - 1], "outside"),
        ("UINT8", [-1], "outside 0 to 255"),
        ("INT32", [True], "not of datatype"),
        ("FP32", ["1.5"], "not of datatype"),
        ("FP32", [None], "null is not of datatype FP32"),
        ("FP32", [True, 1.5], "not of datatype"),
        ("BOOL", [True, None], "not of datatype"),
        ("FP32", [1e39], "does not fit FP32"),
        ("FP64", [float("inf")], "does not fit FP64"),
        ("FP64", [10**400], "does not fit FP64"),
        ("BOOL", [1], "not of datatype BOOL"),
        ("FP16", [65520.0], "does not fit FP16"),
        ("BYTES", [1], "1 is not of datatype BYTES, which accepts strings"),
        ("BYTES", [None], "null is not of datatype BYTES"),
        ("BYTES", ["\ud800"], "surrogate"),
        ("BF16", [1.0], "binary"),
        ("FP32", [[1.0], [1.0, 2.0]], "ragged"),
        ("BYTES", [["a"]], "nested too deep"),
        ("INT64", [-1e19], "outside"),
        ("INT64", [1e3], "1000.0 is not of datatype INT64, which accepts whole numbers"),
        ("FP32", ["x" * 500], r"'x{76}\.\.\. is not of"),
    ],
)
def test_decode_data__lossy_conversion__is_rejected(
    dtype: str, data: list[object], message: str
) -> None:
    with pytest.raises(MlctlError, match=message):
        decode(dtype, data)


def test_decode_data__flat_or_nested__is_read() -> None:
    specs = {"m": TensorSpec(name="m", dtype=Datatype.FP32, shape=(-1, 2))}
    declared = declare(specs, "m", "FP32", [2, 2])
    flat = decode_data(declared, [1, 2, 3, 4])
    np.testing.assert_array_equal(flat, decode_data(declared, [[1, 2], [3, 4]]))
    for wrong in ([1, 2, 3], [[1, 2, 3, 4]], "1234", None):
        with pytest.raises(MlctlError):
            decode_data(declared, wrong)


def test_decode_data__huge_shape__allocates_nothing() -> None:
    for dtype in ("BYTES", "FP32"):
        declared = declare({"t": spec_of(dtype)}, "t", dtype, [1 << 31])
        with pytest.raises(MlctlError, match="expected 2147483648"):
            decode_data(declared, ["a"] if dtype == "BYTES" else [1.0])


@pytest.mark.parametrize("dtype", ["FP32", "INT64", "BOOL"])
def test_decode_data__strings_for_numbers__take_no_memory(dtype: str) -> None:
    texts: list[object] = ["x" * 5000, *["a"] * 20_000]  # 400 MB as an array of texts
    tracemalloc.start()
    try:
        with pytest.raises(MlctlError, match="not of datatype"):
            decode(dtype, texts)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_decode_data__ragged_rows__are_rejected() -> None:
    specs = {"m": TensorSpec(name="m", dtype=Datatype.FP32, shape=(-1, 2))}
    declared = declare(specs, "m", "FP32", [2, 2])
    for uneven in ([[1, 2, 3], [4]], [[1, 2], 3, 4], [[[1]], [[2]], [[3]], [[4]]]):
        with pytest.raises(MlctlError, match="ragged or nested too deep"):
            decode_data(declared, uneven)


@pytest.mark.parametrize("data", [[1, 2], [[1], [2]]])
def test_decode_data__column_of_shape_n_1__is_flat_or_nested(data: list[Any]) -> None:
    specs = {"c": TensorSpec(name="c", dtype=Datatype.FP64, shape=(-1,))}
    assert decode_data(declare(specs, "c", "FP64", [2, 1]), data).tolist() == [1, 2]
    for wrong in ([[1, 2]], [[[1]], [[2]]], [[1], 2]):
        with pytest.raises(MlctlError, match="'c': data"):
            decode_data(declare(specs, "c", "FP64", [2, 1]), wrong)
    with pytest.raises(MlctlError, match="nested too deep"):
        decode_data(declare(specs, "c", "FP64", [2]), [[1], [2]])


def test_decode_data__nested_strings__are_read() -> None:
    specs = {"m": TensorSpec(name="m", dtype=Datatype.BYTES, shape=(-1, 2))}
    declared = declare(specs, "m", "BYTES", [2, 2])
    nested = decode_data(declared, [["a", "b"], ["c", "d"]])
    assert nested.tolist() == [[b"a", b"b"], [b"c", b"d"]]
    assert decode_data(declared, ["a", "b", "c", "d"]).tolist() == nested.tolist()
    for wrong in ([["a", "b", "c"], ["d"]], [["a", "b", "c", "d"]], [["a"], ["b"], ["c"], ["d"]]):
        with pytest.raises(MlctlError, match="'m': data"):
            decode_data(declared, wrong)
    empty = declare(specs, "m", "BYTES", [0, 2])
    assert decode_data(empty, []).shape == (0, 2)


def test_encode_data__not_representable_in_json__is_rejected() -> None:
    with pytest.raises(MlctlError, match="not finite"):
        encode_data(spec_of("FP32"), np.array([np.nan], np.float32))
    with pytest.raises(MlctlError, match="UTF-8"):
        encode_data(spec_of("BYTES"), np.array([b"\xff"], dtype=object))
    with pytest.raises(MlctlError, match="binary"):
        encode_data(spec_of("BF16"), np.ones(1, np.uint16))
    with pytest.raises(MlctlError, match="not finite"):
        encode_data(spec_of("FP16"), np.array([np.inf], np.float16))
