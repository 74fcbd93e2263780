from __future__ import annotations

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlctl.core.errors import MlctlError
from mlctl.services.online.grpc.http2.head import (
    MalformedError,
    encode_metadata,
    make_trailers,
    parse_head,
)
from tests.services.online.grpc.http2.conftest import head


def test_parse_head__valid_fields__are_read() -> None:
    found = parse_head(
        tuple(
            head(b"/a.B/C", (b"grpc-timeout", b"250m"), (b"x-request-id", b"7"), (b"x-bin", b"AP8"))
        )
    )
    assert (found.path, found.timeout, found.is_grpc) == ("/a.B/C", 0.25, True)
    assert found.metadata == (("x-request-id", "7"), ("x-bin", b"\0\xff"))


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [(b"application/grpc+proto", True), (b"application/grpc;x=y", True),
     (b"application/grpcs", False), (b"application/json", False), (b"", False)],
)  # fmt: skip
def test_parse_head__content_type__decides_whether_it_is_grpc(
    content_type: bytes, expected: bool
) -> None:
    fields = [pair for pair in head() if pair[0] != b"content-type"]
    assert parse_head((*fields, (b"content-type", content_type))).is_grpc is expected


def test_parse_head__field_twice_with_other_values__is_not_used() -> None:
    twice = tuple(head(b"/", (b"grpc-timeout", b"1S"), (b"content-type", b"application/grpc")))
    found = parse_head((*twice, (b"grpc-timeout", b"1S")))
    assert (found.is_grpc, found.timeout) == (True, 1.0)
    assert not parse_head((*twice, (b"content-type", b"application/json"))).is_grpc
    assert not parse_head((*twice, (b"grpc-timeout", b"2S"))).plain
    with pytest.raises(MalformedError):
        parse_head((*twice, (b"te", b"gzip"), (b"te", b"trailers")))


@pytest.mark.parametrize("text", [b"", b"1", b"S", b"-1S", b"123456789S", b"1.5S", b"1s"])
def test_parse_head__invalid_timeout__is_rejected(text: bytes) -> None:
    with pytest.raises(MlctlError):
        _ = parse_head(tuple(head(b"/", (b"grpc-timeout", text)))).timeout


@pytest.mark.parametrize(
    "fields",
    [
        head()[1:],
        [*head(), (b":path", b"/late")],
        [(b":path", b"/twice"), *head()],
        [(b":unknown", b""), *head()],
        [*head(), (b"Upper", b"")],
        [*head(), (b"", b"")],
        [*head(), (b"connection", b"close")],
        [*head(), (b"te", b"gzip")],
    ],
)
def test_parse_head__forbidden_headers__are_malformed(fields: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(MalformedError):
        parse_head(tuple(fields))


def test_parse_head__metadata_is_no_base64__is_rejected() -> None:
    with pytest.raises(MlctlError):
        _ = parse_head(tuple(head(b"/", (b"x-bin", b"A")))).metadata


@given(st.text())
def test_make_trailers__any_message__is_plain_ascii(message: str) -> None:
    fields = dict(make_trailers(3, message))
    text = fields[b"grpc-message"]
    assert all(0x20 <= byte < 0x7F for byte in text)
    assert unquote(text.decode()) == message.encode(errors="replace").decode()


@given(st.binary())
def test_encode_metadata__any_bytes__are_read_back(value: bytes) -> None:
    (field,) = encode_metadata((("x-bin", value),))
    assert parse_head((*head(), field)).metadata == (("x-bin", value),)
