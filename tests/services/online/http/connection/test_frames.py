"""What is around a request's numbers."""

from __future__ import annotations

import pytest

from services.online.http.connection.frames import MOST_BYTES, Frame, fill, find_frame


def request(body: bytes, head: bytes = b"POST / HTTP/1.1\r\nHost: a\r\n") -> bytes:
    """A whole request."""
    return b"%bContent-Length: %d\r\nX: y\r\n\r\n%b" % (head, len(body), body)


def body_at(data: bytes) -> int:
    return data.index(b"\r\n\r\n") + 4


def cut(frame: Frame, data: bytes) -> tuple[int, list[bytes]] | None:
    """The body's length and the arrays of `data`, if it has this frame."""
    found = frame.cut(data)
    return None if found is None else (found[0], [data[place] for place in found[1]])


TWO = request(b'{"data" : [1, 2],"x":{"data":[3]}}')


@pytest.mark.parametrize("first", ["", "5", "5,6" * 50, " " * 1000, "5]"])
def test_what_is_around_the_numbers_is_found_again(first: str) -> None:
    frame = find_frame(TWO, body_at(TWO))
    assert frame is not None
    assert fill(frame, [b"1, 2", b"3"]) == TWO[body_at(TWO) :]
    body = fill(frame, [first.encode(), b"7"])
    found = cut(frame, request(body))
    assert found == ((len(body), [f"[{first}]".encode(), b"[7]"]) if "]" not in first else None)


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
    assert cut(frame, TWO) == (34, [b"[1, 2]", b"[3]"])
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
