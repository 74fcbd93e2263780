import numpy as np
import pytest

from mlctl.bundle.tensors import Datatype, TensorSpec
from mlctl.core.errors import MlctlError
from mlctl.services.protocol.wire import check_outputs, declare, decode_raw, encode_raw

SPECS = {
    "x": TensorSpec(name="x", dtype=Datatype.FP32, shape=(-1, 2)),
    "w": TensorSpec(name="w", dtype=Datatype.BYTES, shape=(-1,)),
    "b": TensorSpec(name="b", dtype=Datatype.BOOL, shape=(-1,)),
    "any": TensorSpec(name="any", dtype=Datatype.UINT8, shape=(-1, -1)),
}


def test_raw__numbers__are_little_endian() -> None:
    array = decode_raw(declare(SPECS, "x", "FP32", [1, 2]), b"\0\0\x80?\0\0\0@")
    assert array.tolist() == [[1.0, 2.0]]
    assert encode_raw(Datatype.FP32, array.astype(">f4")) == b"\0\0\x80?\0\0\0@"


def test_declare__column_of_shape_n_1__has_the_shape_of_the_signature() -> None:
    declared = declare(SPECS, "b", "BOOL", [2, 1])
    assert (declared.shape, declared.sent_shape) == ((2,), (2, 1))
    assert decode_raw(declared, b"\0\1").tolist() == [False, True]


def test_raw__bytes_elements__have_their_lengths() -> None:
    data = b"\2\0\0\0ab\0\0\0\0"
    array = decode_raw(declare(SPECS, "w", "BYTES", [2]), data)
    assert array.tolist() == [b"ab", b""]
    assert encode_raw(Datatype.BYTES, array) == data


@pytest.mark.parametrize(
    ("name", "datatype", "shape", "message"),
    [
        ("z", "FP32", [1, 2], "input 'z' is unknown.*'x', 'w'"),
        (None, "FP32", [1, 2], "input None is unknown"),
        ("x", "FLOAT", [1, 2], "datatype 'FLOAT' is unknown"),
        ("x", ["FP32"], [1, 2], "is unknown"),
        ("x", "FP64", [1, 2], "datatype is FP64, expected FP32"),
        ("x", "FP32", [1, 3], r"shape is \[1, 3\], expected \[-1, 2\]"),
        ("x", "FP32", [1], "1 dimensions"),
        ("x", "FP32", [-1, 2], "-1 is not a size"),
        ("x", "FP32", [True, 2], "True is not a size"),
        ("x", "FP32", [1.0, 2], "1.0 is not a size"),
        ("x", "FP32", [1 << 80, 2], "is not a size"),
        ("b", "BOOL", [1, 2], "2 dimensions"),
        ("b", "BOOL", [2, True], "2 dimensions"),
        ("b", "BOOL", [2, 1, 1], "3 dimensions"),
        ("x", "FP32", [1, 2, 1], "3 dimensions"),
        ("any", "UINT8", [1 << 30, 1 << 30], "elements are more"),
    ],
)
def test_declare__invalid_declaration__is_rejected(
    name: object, datatype: object, shape: list[object], message: str
) -> None:
    with pytest.raises(MlctlError, match=message):
        declare(SPECS, name, datatype, shape)


@pytest.mark.parametrize(
    ("name", "shape", "data", "message"),
    [
        ("x", [1, 2], b"\0" * 7, "7 bytes of data, expected 8"),
        ("w", [1 << 30], b"", "too few for 1073741824 elements"),
        ("w", [1], b"\xff\xff\xff\xff", "inside element 0"),
        ("w", [2], b"\4\0\0\0abcd", "before element 1"),
        ("w", [1], b"\0\0\0\0x", "1 bytes are left"),
        ("b", [1], b"\2", "neither 0 nor 1"),
    ],
)
def test_decode_raw__data_does_not_fit__is_rejected(
    name: str, shape: list[object], data: bytes, message: str
) -> None:
    declared = declare(SPECS, name, SPECS[name].dtype.value, shape)
    with pytest.raises(MlctlError, match=message):
        decode_raw(declared, data)


def test_check_outputs__unknown_or_duplicate__are_rejected() -> None:
    check_outputs(SPECS, ["x", "w"])
    with pytest.raises(MlctlError, match="'q' is unknown"):
        check_outputs(SPECS, ["q"])
    with pytest.raises(MlctlError, match="twice"):
        check_outputs(SPECS, ["x", "x"])


def test_declare__very_long_name__is_shortened_in_the_message() -> None:
    with pytest.raises(MlctlError) as caught:
        declare(SPECS, "n" * 10_000, "FP32", [1, 2])
    assert len(caught.value.message) < 200


def test_decode_raw__no_elements__is_an_empty_array() -> None:
    assert decode_raw(declare(SPECS, "x", "FP32", [0, 2]), b"").shape == (0, 2)
    assert decode_raw(declare(SPECS, "b", "BOOL", [0]), b"").dtype == np.bool_
