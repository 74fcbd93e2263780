"""The headers of a call, and the headers and trailers of its response."""

from __future__ import annotations

import math
import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Container, Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote_from_bytes

from mlctl.core.errors import MlctlError
from mlctl.services.online.grpc.http2.huffman import decode_huffman
from mlctl.services.online.grpc.http2.messages import CODINGS
from mlctl.services.online.grpc.status import Trailer
from mlctl.services.online.http.fields import fields_of
from mlctl.services.protocol.priority import PRIORITY_HEADER
from mlctl.services.protocol.wire import invalid

Fields = tuple[tuple[bytes, bytes], ...]
CONTENT_TYPE = b"application/grpc"
LENGTH = b"content-length"
HEADERS: Fields = (
    (b":status", b"200"),
    (b"content-type", CONTENT_TYPE),
    (b"grpc-accept-encoding", b"identity, deflate, gzip"),
)
OK_TRAILERS: Fields = ((b"grpc-status", b"0"),)
_PSEUDO = frozenset({b":method", b":scheme", b":path", b":authority"})
_REQUIRED = frozenset({b":method", b":scheme", b":path"})
# Of one hop in HTTP/1.1: in HTTP/2 they are an error.
_ONE_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)
# What observers read of each call.
PER_CALL = frozenset({b"x-request-id", b"traceparent", b"tracestate"})
# Headers whose values differ between the calls of one connection, and that no parsed head has.
VARYING = PER_CALL | {
    LENGTH, b"inference-header-content-length", b"authorization", b"x-forwarded-for",
    b"x-envoy-external-address",
}  # fmt: skip
# These are the protocol's own; all others are the caller's metadata.
_OWN = frozenset({b"te", b"content-type", b"grpc-timeout", b"grpc-encoding"}) | {
    b"grpc-accept-encoding"
}
# RFC 9113 (8.2.1): no line end or NUL, and no white space at either end.
_VALUE = re.compile(rb"(?:[^\0\r\n\t ](?:[^\0\r\n]*[^\0\r\n\t ])?)?")
_NAME = re.compile(rb"[0-9a-z_.!#$%&'*+^`|~-]+")
_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
# What a field takes beside its bytes.
FIELD_BYTES = 160
# grpc-message is printable ASCII but for the percent sign.
_PLAIN = bytes(set(range(0x20, 0x7F)) - {0x25}).decode()


class MalformedError(Exception):
    """Headers that HTTP/2 forbids."""


class CallHead(NamedTuple):
    """A call's headers, `size` bytes of memory. `timeout_text` is as the client wrote it.

    `own` are those whose values are strings of HPACK, `named` the others by name. `is_grpc` is
    whether the content type is gRPC's in some spelling, `plain` whether all headers are valid for
    an uncompressed message and name no priority. `length` is the declared content-length in bytes.
    """

    method: bytes
    path: str
    content_type: bytes
    timeout_text: bytes | None
    encoding: bytes
    authorization: bytes | None
    decoded: Fields
    size: int
    named: dict[bytes, bytes]
    is_grpc: bool
    plain: bool = False
    own: Fields = ()
    length: int | None = None

    @property
    def fields(self) -> Fields:
        """The headers."""
        if not self.own:
            return self.decoded
        return (*self.decoded, *[(name, text_of(value)) for name, value in self.own])

    @property
    def reusable(self) -> bool:
        """Whether the head may be cached: without a token, and without headers of one call."""
        return all(name not in VARYING for name, _ in self.fields)

    @property
    def per_call(self) -> dict[bytes, bytes]:
        """The headers of PER_CALL by name."""
        if not self.own:
            return fields_of([field for field in self.decoded if field[0] in PER_CALL])
        found = {}
        for name, value in self.own:  # a comprehension is a call more
            if name in PER_CALL:
                found[name] = value[1:] if value[0] < 0x80 else text_of(value)
        return found

    def headers(self, wanted: Container[bytes]) -> Mapping[bytes, bytes]:
        """Return the headers by name; those of `own` only as far as they are `wanted`."""
        if not self.own:
            return self.named
        found = {**self.named}
        for name, value in self.own:
            if name in wanted:
                found[name] = value[1:] if value[0] < 0x80 else text_of(value)
        return found

    @property
    def timeout(self) -> float | None:
        """The client's timeout in seconds, or None; INVALID_INPUT if it is malformed."""
        if self.timeout_text is None:
            return None
        found = _TIMEOUT.fullmatch(self.timeout_text)
        if found is None:
            raise invalid("grpc-timeout is at most eight digits and a unit: H, M, S, m, u or n")
        return int(found[1]) * _UNITS[found[2]]

    @property
    def metadata(self) -> tuple[Trailer, ...]:
        """The client's metadata, in the form of gRPC's library; INVALID_INPUT if malformed."""
        return tuple(
            _value(name, value)
            for name, value in self.fields
            if name not in _OWN and not name.startswith(b":")
        )


def parse_head(fields: Fields) -> CallHead:
    """Return the head of a call; raise MalformedError for headers that are against HTTP/2.

    Parsed heads are cached for all connections, without the headers that differ in every call, of
    which a client's token is one.
    """
    same: list[tuple[bytes, bytes]] = []
    extra = 0
    for field in fields:
        name = field[0]
        _check_value(field[1])
        if name in VARYING:
            extra += len(name) + len(field[1]) + FIELD_BYTES
        elif extra and name.startswith(b":"):
            raise MalformedError(name)
        else:
            same.append(field)
    head = _parse(tuple(same))
    if not extra:
        return head
    named = fields_of(fields)
    return head._replace(
        decoded=fields,
        size=head.size + extra,
        named=named,
        authorization=named.get(b"authorization"),
        length=length_of(named[LENGTH]) if LENGTH in named else None,
    )


def length_of(value: bytes) -> int:
    """Return the number of bytes that content-length declares; MalformedError if it is none."""
    if not value.isdigit():
        raise MalformedError(LENGTH)
    try:
        return int(value)
    except ValueError:  # thousands of digits
        raise MalformedError(LENGTH) from None


def check_length(declared: int, size: int) -> None:
    """Raise MalformedError if `size` bytes are not as many as were declared."""
    if declared != size:
        raise MalformedError(LENGTH)


def check_trailers(fields: Fields, *, ended: bool) -> None:
    """Raise MalformedError for trailers that are against HTTP/2, or that did not end the stream."""
    if not ended:
        raise MalformedError
    for name, value in fields:
        _check_name(name)
        _check_value(value)


def _check_name(name: bytes) -> None:
    if name in _ONE_HOP or _NAME.fullmatch(name) is None:
        raise MalformedError(name)


def _check_value(value: bytes) -> None:
    if _VALUE.fullmatch(value) is None:
        raise MalformedError


@lru_cache(maxsize=128)
def _parse(fields: Fields) -> CallHead:
    seen = set[bytes]()
    regular = False
    for name, _ in fields:
        if name.startswith(b":"):
            if regular or name in seen or name not in _PSEUDO:
                raise MalformedError(name)
        else:
            regular = True
            _check_name(name)
        seen.add(name)
    named = fields_of(fields)
    if not seen >= _REQUIRED or not named[b":path"] or named.get(b"te", b"trailers") != b"trailers":
        raise MalformedError
    content_type = named.get(b"content-type", b"")
    rest = content_type.removeprefix(CONTENT_TYPE)
    head = CallHead(
        named[b":method"],
        named[b":path"].decode("latin-1"),
        content_type,
        named.get(b"grpc-timeout"),
        named.get(b"grpc-encoding", b"identity"),
        None,
        fields,
        sum(len(name) + len(value) + FIELD_BYTES for name, value in fields),
        named,
        is_grpc=rest != content_type and rest[:1] in (b"", b"+", b";"),
    )
    return head._replace(plain=_is_plain(head))


def _is_plain(head: CallHead) -> bool:
    text = head.timeout_text
    timed = text is None or _TIMEOUT.fullmatch(text) is not None
    try:
        usual = timed and all(name != PRIORITY_HEADER for name, _ in head.metadata)
    except MlctlError:
        return False
    return head.method == b"POST" and head.is_grpc and head.encoding in CODINGS and usual


def make_trailers(number: int, message: str, metadata: Iterable[Trailer] = ()) -> Fields:
    """The trailers that end a call with status `number`."""
    text = quote_from_bytes(message.encode(errors="replace"), safe=_PLAIN).encode()
    status = ((b"grpc-status", b"%d" % number), (b"grpc-message", text))
    return (*status, *encode_metadata(metadata))


def encode_metadata(metadata: Iterable[Trailer]) -> Fields:
    """Our metadata as header fields: binary values as base64, without padding."""
    found: list[tuple[bytes, bytes]] = []
    for name, value in metadata:
        raw = value.encode() if isinstance(value, str) else value
        packed = b64encode(raw).rstrip(b"=") if name.endswith("-bin") else raw
        found.append((name.encode(), packed))
    return tuple(found)


def text_of(string: bytes) -> bytes:
    """Return the text of a valid string of HPACK whose length is one byte."""
    return string[1:] if string[0] < 0x80 else decode_huffman(string[1:])


def _value(name: bytes, value: bytes) -> Trailer:
    key = name.decode("ascii")
    if not key.endswith("-bin"):
        return key, value.decode("latin-1")
    try:
        return key, b64decode(value + b"=" * (math.ceil(len(value) / 4) * 4 - len(value)))
    except (Base64Error, ValueError):
        raise invalid(f"the metadata {key} is not base64") from None
