"""What is around a request's numbers, and many requests' numbers read at once."""

from __future__ import annotations

import numpy as np
import pytest

from bundle.tensors import DYNAMIC, Datatype, TensorSpec
from services.lean.frames import MOST_BYTES, fill, find_frame, read_numbers
from services.v2.wire import Declared, declare


def request(body: bytes, head: bytes = b"POST / HTTP/1.1\r\nHost: a\r\n") -> bytes:
    """A whole request."""
    return b"%bContent-Length: %d\r\nX: y\r\n\r\n%b" % (head, len(body), body)


def body_at(data: bytes) -> int:
    return data.index(b"\r\n\r\n") + 4


TWO = request(b'{"data" : [1, 2],"x":{"data":[3]}}')


@pytest.mark.parametrize("first", ["", "5", "5,6" * 50, " " * 1000, "5]"])
def test_what_is_around_the_numbers_is_found_again(first: str) -> None:
    frame = find_frame(TWO, body_at(TWO))
    assert frame is not None
    assert fill(frame, [b"1, 2", b"3"]) == TWO[body_at(TWO) :]
    body = fill(frame, [first.encode(), b"7"])
    found = frame.cut(request(body))
    assert found == ((len(body), [first.encode(), b"7"]) if "]" not in first else None)


LONG = TWO.replace(b"34", b"%d" % (30 + MOST_BYTES)).replace(b"1, 2", b" " * MOST_BYTES)


@pytest.mark.parametrize(
    "other",
    [
        TWO[:-1],
        TWO + b" ",
        TWO.replace(b"X: y", b"X: z"),
        TWO.replace(b"X: y", b"X: y "),
        TWO.replace(b"Length: 34", b"Length: 35"),
        TWO.replace(b"Length: 34", b"Length: 034"),
        TWO.replace(b"Length: 34", b"Length: "),
        TWO.replace(b'"x"', b'"z"'),
        TWO.replace(b"[3]", b"[3] "),
        request(b'{"data" : [1, "],"x":{"data":[3]}}'),
        request(b'{"data" : [1, 2],"x":{"data":[3]'),
        request(b'{"data" : [1'),
        b"",
        LONG,
    ],
)
def test_what_differs_elsewhere_is_not_alike(other: bytes) -> None:
    frame = find_frame(TWO, body_at(TWO))
    assert frame is not None
    assert frame.cut(TWO) == (34, [b"1, 2", b"3"])
    assert frame.cut(other) is None


@pytest.mark.parametrize(
    "data",
    [
        request(b'{"date":[1]}'),
        request(b'{"data":["1"]}'),
        request(b'{"data":[[1]]}'),
        request(b'{"data":[{}]}'),
        request(b'{"data":[1]}', b"POST / HTTP/1.1\r\nContent-Length: 12\r\n"),
        request(b'{"data":[1],"x":"%b"}' % (b"x" * 5000)),
        LONG,
    ],
)
def test_other_requests_have_no_frame(data: bytes) -> None:
    assert find_frame(data, body_at(data)) is None


def declared(dtype: Datatype, count: int) -> Declared:
    """One row of `count` values."""
    spec = TensorSpec(name="x", dtype=dtype, shape=(DYNAMIC, count))
    return declare({"x": spec}, "x", dtype.value, [1, count])


def test_rows_are_read_together() -> None:
    found = read_numbers(declared(Datatype.FP32, 2), [b" 1,2.5", b"1e2 ,\n-0", b"3,16777217"])
    assert found is not None
    assert found.dtype == np.float32
    assert found.tolist() == [[1, 2.5], [100, 0], [3, 16777216]]
    whole = read_numbers(declared(Datatype.UINT64, 1), [b"18446744073709551615", b"0"])
    assert whole is not None
    assert whole.tolist() == [[18446744073709551615], [0]]


@pytest.mark.parametrize("dtype", [Datatype.FP16, Datatype.FP32, Datatype.FP64, Datatype.INT8])
@pytest.mark.parametrize(
    "texts",
    [
        [b"1"],
        [b"1,2,3"],
        [b""],
        [b"1,null"],
        [b"1,2", b"1,2,null"],
        [b"1", b"1,2,3"],
        [b"1,2,null,3", b"4"],
        [b"1,2,null,3,4", b"5,6"],
        [b"1,2", b"", b"3,4"],
        [b"1,true"],
        [b"1,2", b"false,3"],
        [b"1,[2]", b"1,2"],
        [b"1,{}"],
        [b"1,1e400"],
        [b"1,NaN"],
        [b"01,2"],
        [b"1,2]", b"[3,4"],
        [b"1,\xff"],
    ],
)
def test_what_is_no_row_of_numbers_is_not_read(dtype: Datatype, texts: list[bytes]) -> None:
    assert read_numbers(declared(dtype, 2), texts) is None


@pytest.mark.parametrize(
    ("dtype", "text"),
    [(Datatype.FP16, b"70000"), (Datatype.FP32, b"1e39"), (Datatype.INT8, b"128"),
     (Datatype.INT32, b"1.0"), (Datatype.UINT64, b"18446744073709551616")],
)  # fmt: skip
def test_what_does_not_fit_is_not_read(dtype: Datatype, text: bytes) -> None:
    assert read_numbers(declared(dtype, 1), [b"1"]) is not None
    assert read_numbers(declared(dtype, 1), [b"1", text]) is None
