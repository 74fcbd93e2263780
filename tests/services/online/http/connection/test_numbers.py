"""Numbers in JSON become the same bytes as on the long way, or none at all."""

from __future__ import annotations

import math

import numpy as np
import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bundle.errors import MlctlError
from bundle.tensors import DYNAMIC, Datatype, TensorSpec
from services.online.http.connection.numbers import CODES, pack_of, read_numbers
from services.protocol.json_data import decode_data
from services.protocol.wire import Declared, declare, encode_raw

BEFORE, AFTER = b'{"true":', b"}false"


def declared(dtype: Datatype, count: int) -> Declared:
    """One row of `count` values."""
    spec = TensorSpec(name="x", dtype=dtype, shape=(DYNAMIC, count))
    return declare({"x": spec}, "x", dtype.value, [1, count])


def read(dtype: Datatype, count: int, text: bytes) -> bytes | None:
    """What is made of the array whose inside is `text`."""
    place = slice(len(BEFORE), len(BEFORE) + len(text) + 2)
    return read_numbers(pack_of(declared(dtype, count)), b"%b[%b]%b" % (BEFORE, text, AFTER), place)


def read_slowly(dtype: Datatype, count: int, text: bytes) -> bytes | None:
    """What a request of which nothing is known has there."""
    try:
        array = decode_data(declared(dtype, count), orjson.loads(b"[%b]" % text))
    except (orjson.JSONDecodeError, MlctlError):
        return None
    return encode_raw(dtype, array)


WHOLE = st.one_of(st.integers(-300, 300), st.integers(-(1 << 64), 1 << 65), st.integers()).map(str)
# Where whole numbers stop to fit, or to be floats.
BITS = (7, 8, 15, 16, 24, 31, 32, 53, 63, 64)
EDGES = [f"{sign * (1 << bits) + more}" for sign in (-1, 1) for bits in BITS for more in (-1, 0, 1)]
# Midway between two floats, where rounding is decided, and beside; the greatest and the least.
MIDDLES = (
    65504.0, 65519.999, 65520.0, 2.0**-24, 2.0**-25, 3 * 2.0**-25, math.nextafter(2.0**-25, 1),
    1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-24, 1 + 3 * 2.0**-24, 2.0**-149, 2.0**-150,
    math.nextafter(2.0**-150, 1), 3.4028234663852886e38, 3.4028235677973366e38,
    math.nextafter(3.4028235677973366e38, 0), 5e-324, 1.7976931348623157e308,
)  # fmt: skip
EDGES += [f"{each:.{digits}e}" for each in MIDDLES for digits in (16, 17, 30)]
ODD = ["", " ", "null", "true", "false", "NaN", "Infinity", "-Infinity", "nan", "1e400", "-1e400",
       "-0", "-0.0", "0e0", "1e-400", "1.0", "1E+2", "01", "1.", ".5", "+1", "-", "1 2", "1,", "{}",
       "[", "[1", "\x00", "\x7f", "\xff", "0x1", "1_0", "//", "9" * 400,
       "0." + "3" * 400]  # fmt: skip
NUMBER = st.one_of(
    WHOLE,
    st.sampled_from(EDGES),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.floats(width=32, allow_nan=False, allow_infinity=False).map(repr),
    st.floats(width=16, allow_nan=False, allow_infinity=False).map(repr),
    st.decimals(allow_nan=False, allow_infinity=False).map(str),
)
ITEMS = st.lists(st.one_of(NUMBER, NUMBER, NUMBER, st.sampled_from(ODD)), max_size=5)
SPACES = st.sampled_from([",", ", ", " ,\r\n\t"])


@settings(max_examples=600)
@given(dtype=st.sampled_from([*CODES]), items=ITEMS, comma=SPACES, count=st.integers(1, 5))
@example(dtype=Datatype.FP32, items=["16777217", "-0"], comma=",", count=2)
@example(dtype=Datatype.UINT64, items=["18446744073709551615", "0"], comma=",", count=2)
def test_numbers_are_read_as_on_the_long_way(
    dtype: Datatype, items: list[str], comma: str, count: int
) -> None:
    text = comma.join(items).encode("latin-1")
    found = read(dtype, count, text)
    assert found == read_slowly(dtype, count, text)


@settings(max_examples=300)
@given(
    dtype=st.sampled_from([*CODES]),
    edge=st.sampled_from([*EDGES, "0", "1e2"]),
    negative=st.booleans(),
)
def test_each_number_at_an_edge_is_read_as_on_the_long_way(
    dtype: Datatype, edge: str, negative: bool
) -> None:
    text = f"-{edge}".replace("--", "").encode() if negative else edge.encode()
    assert read(dtype, 1, text) == read_slowly(dtype, 1, text)


def test_the_bytes_are_those_of_the_tensor() -> None:
    found = read(Datatype.FP32, 3, b" 1,2.5 ,\n-0.1")
    assert found is not None
    assert np.frombuffer(found, "<f4").tolist() == np.array([1, 2.5, -0.1], "f4").tolist()
    assert read(Datatype.INT16, 2, b"-2,258") == b"\xfe\xff\x02\x01"


@pytest.mark.parametrize("dtype", [*CODES])
@pytest.mark.parametrize(
    "text",
    [
        b"1", b"1,2,3", b"", b"1,null", b"1,true", b"false,3", b"1,[2", b"1,{}", b"1,1e400",
        b"1,NaN", b"01,2", b"1,\xff", b"1,2,",
    ],
)  # fmt: skip
def test_what_is_no_row_of_numbers_is_not_read(dtype: Datatype, text: bytes) -> None:
    assert read(dtype, 2, b"1,2") is not None
    assert read(dtype, 2, text) is None


@pytest.mark.parametrize(
    ("dtype", "text"),
    [(Datatype.FP16, b"65520"), (Datatype.FP32, b"1e39"), (Datatype.INT8, b"128"),
     (Datatype.UINT8, b"-1"), (Datatype.INT32, b"1.0"), (Datatype.UINT64, b"18446744073709551616")],
)  # fmt: skip
def test_what_does_not_fit_is_not_read(dtype: Datatype, text: bytes) -> None:
    assert read(dtype, 1, text) is None
