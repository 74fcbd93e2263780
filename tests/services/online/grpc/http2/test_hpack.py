from __future__ import annotations

import string
from typing import Any

import pytest
from hpack import Decoder, Encoder, HPACKError
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hypothesis import example, given
from hypothesis import strategies as st

from mlctl.services.online.grpc.http2 import head as head_module
from mlctl.services.online.grpc.http2 import hpack
from mlctl.services.online.grpc.http2.frames import BrokenError, Reason
from mlctl.services.online.grpc.http2.head import (
    HEADERS,
    LENGTH,
    OK_TRAILERS,
    PER_CALL,
    VARYING,
    CallHead,
    Fields,
    MalformedError,
)
from mlctl.services.online.grpc.http2.hpack import NO_TABLE, HeadReader, encode
from mlctl.services.online.http.fields import fields_of
from tests.services.online.grpc.http2.conftest import head

FIELD = st.tuples(
    st.sampled_from([b"te", b"a", b"long-name"]),
    st.sampled_from([b"trailers", b"x", b"y" * 200]),
).filter(lambda field: field[0] != b"te" or field[1] == b"trailers")
FIELDS = st.lists(st.tuples(FIELD, st.booleans()), max_size=5)
BLOCKS = st.lists(st.tuples(FIELDS, st.sampled_from([None, 0, 60, 4096])))


@given(BLOCKS)
def test_head_reader__any_blocks__equal_a_plain_decoder(
    blocks: list[tuple[list[tuple[tuple[bytes, bytes], bool]], int | None]],
) -> None:
    encoder, plain, reader = Encoder(), Decoder(), HeadReader(1 << 16)
    for fields, table_size in blocks:
        if table_size is not None:
            encoder.header_table_size = table_size
        whole: list[Any] = [*head()[:4], *((*field, hidden) for field, hidden in fields)]
        for _ in range(2):
            data = encoder.encode(whole)
            assert reader.read(data).fields == tuple(plain.decode(data, raw=True))


def test_head_reader__same_block_again__is_decoded_once() -> None:
    encoder, reader = Encoder(), HeadReader(1 << 16)
    reader.read(encoder.encode(head()))
    again = encoder.encode(head())
    literals = encode(tuple(head()))
    assert reader.read(again) is reader.read(again)
    assert reader.read(literals) is reader.read(literals)


def test_head_reader__token_of_a_head__is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[Fields] = []
    kept = head_module._parse

    def noted(fields: Fields) -> CallHead:
        parsed.append(fields)
        return kept(fields)

    monkeypatch.setattr(head_module, "_parse", noted)
    reader = HeadReader(1 << 16)
    token = (b"authorization", b"Bearer secret")
    secret = encode((*head(), token, (b"x-request-id", b"1")))
    first, second = reader.read(secret), reader.read(secret)
    assert first.authorization == second.authorization == token[1]
    assert sorted(first.fields) == sorted(second.fields)
    assert not reader._heads
    reader.read(encode(tuple(head())))
    assert [each.authorization for each in reader._heads.values()] == [None]
    (layout,) = reader._layouts
    assert layout.head.authorization is None
    assert token not in layout.head.fields
    assert token[1] not in b"".join([*(fixed for fixed, _, _ in layout.parts), layout.rest])
    assert all(token not in each for each in parsed)


ANY = st.tuples(
    st.sampled_from([b"x-request-id", b"traceparent", b"a", b"authorization", b":path"]),
    st.binary(max_size=40),
)


@given(st.lists(st.tuples(st.lists(st.tuples(ANY, st.booleans()), max_size=6), st.booleans())))
def test_head_reader__any_blocks__decodes_as_the_library(
    blocks: list[tuple[list[tuple[tuple[bytes, bytes], bool]], bool]],
) -> None:
    encoder, plain, reader = Encoder(), Decoder(), HeadReader(1 << 16)
    for fields, huffman in blocks:
        whole: list[Any] = [(*field, hidden) for field, hidden in fields]
        data = encoder.encode(whole, huffman=huffman)
        expected = tuple(
            (bytes(name), bytes(value)) for name, value in plain.decode(data, raw=True)
        )
        assert reader.decode(data) == expected
        dynamic = tuple(
            (bytes(name), bytes(value)) for name, value in plain.header_table.dynamic_entries
        )
        assert tuple(reader._table) == dynamic


VALUES = st.binary(max_size=150).map(lambda value: bytes(each for each in value if each > 0x20))
OWN = st.tuples(st.sampled_from(sorted(VARYING - {LENGTH})), VALUES, st.booleans())
SIZED = st.tuples(st.just(LENGTH), st.integers(0, 10**9).map(b"%d".__mod__), st.booleans())
REST = st.lists(st.sampled_from([(b"te", b"trailers"), (b"a", b"x"), (b"a", b"y" * 9)]), max_size=2)
CALL = st.tuples(
    st.tuples(st.lists(OWN, max_size=3), st.lists(SIZED, max_size=1)).map(
        lambda own: own[0] + own[1]
    ),
    REST,
    st.booleans(),
    st.sampled_from([None, 0, 4096]),
)


@given(st.lists(CALL, max_size=6))
def test_head_reader__calls_that_differ_in_their_own_headers__are_read_as_the_library_does(
    calls: list[
        tuple[list[tuple[bytes, bytes, bool]], list[tuple[bytes, bytes]], bool, int | None]
    ],
) -> None:
    """The parts that calls share are cached, and the values between them are decoded when used."""
    encoder, plain, reader = Encoder(), Decoder(), HeadReader(1 << 16)
    for own, rest, huffman, table_size in calls:
        if table_size is not None:
            encoder.header_table_size = table_size
        whole: list[Any] = [*head()[:4], *own, *((*field, True) for field in rest)]
        for _ in range(2):
            data = encoder.encode(whole, huffman=huffman)
            fields = [(bytes(name), bytes(value)) for name, value in plain.decode(data, raw=True)]
            head_read = reader.read(data)
            found = head_read.fields
            assert head_read.per_call == fields_of([each for each in fields if each[0] in PER_CALL])
            assert head_read.headers(VARYING) == fields_of(fields)
            assert head_read.authorization == fields_of(fields).get(b"authorization")
            for name in {name for name, _ in fields}:
                values = [value for each, value in fields if each == name]
                assert [value for each, value in found if each == name] == values
            assert len(found) == len(fields)
            dynamic = [(bytes(n), bytes(v)) for n, v in plain.header_table.dynamic_entries]
            assert list(reader._table) == dynamic


@given(
    st.binary(max_size=30),
    st.sampled_from([b"\0", b"\r", b"\n", b" ", b"\t"]),
    st.binary(max_size=30),
    st.booleans(),
)
def test_head_reader__invalid_value_of_a_call_in_huffmans_code__is_malformed(
    first: bytes, invalid: bytes, last: bytes, huffman: bool
) -> None:
    """Also where the rest of the block is cached."""
    encoder, reader = Encoder(), HeadReader(1 << 16)
    encoder.header_table_size = 0

    def read(value: bytes) -> CallHead:
        fields: list[Any] = [*head(), (b"x-request-id", value, True)]
        return reader.read(encoder.encode(fields, huffman=huffman))

    for _ in range(3):
        read(b"0af7651916cd43dd8448eb211c80319c")
    values = [invalid + last, first + invalid]
    if invalid not in b" \t":
        values.append(first + invalid + last)
    for value in values:
        with pytest.raises(MalformedError):
            read(value)


def test_head_reader__calls_of_a_client_without_a_table__decode_their_shared_headers_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoder, reader = Encoder(), HeadReader(1 << 16)
    encoder.header_table_size = 0
    rest = (b"x-forwarded-proto", b"http")

    def read(number: int) -> CallHead:
        own = (b"x-request-id", b"%032x" % number)
        return reader.read(encoder.encode([*head(), own, rest]))

    for number in range(3):  # the first announces the size of the table
        read(number)
    monkeypatch.setattr(hpack, "parse_head", lambda _: pytest.fail("parsed again"))
    assert fields_of(read(3).fields)[b"x-request-id"] == b"%032x" % 3
    assert read(4).path == read(5).path


def test_head_reader__very_many_headers_of_one_call__are_charged_each_time() -> None:
    reader = HeadReader(1 << 16)
    own = tuple((b"x-request-id", b"%d" % number) for number in range(300))
    for _ in range(3):
        reader.cost = 0
        reader.read(encode((*head(), *own)))
        assert reader.cost >= (6 + 300 - 128) / 8


CODER = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)
CODED = st.binary(max_size=30) | st.builds(
    bytes.__add__,
    st.text(string.printable, max_size=30).map(lambda text: bytes(CODER.encode(text.encode()))),
    st.sampled_from([b"", b"\0", b"\xf8", b"\xfe", b"\xff", b"\xff" * 4]),
)


@given(CODED)
@example(b"\x1c")  # an "a" (00011) with another padding than ones: RFC 7541 (5.2)
@example(b"\x1f\xff")  # an "a" with 11 bits of padding
@example(b"\xff\xff\xff\xff")  # the end of a string, which must not be in one
def test_head_reader__huffmans_code_of_a_cached_layout__is_read_as_that_of_the_first(
    coded: bytes,
) -> None:
    block = encode(tuple(head())) + b"\x00\x0cx-request-id"
    cached, first = HeadReader(1 << 16), HeadReader(1 << 16)
    cached.read(block + b"\x01a")
    assert cached._layouts

    def read(reader: HeadReader) -> Fields | Reason | type[MalformedError]:
        try:
            return reader.read(block + bytes([0x80 | len(coded)]) + coded).fields
        except BrokenError as error:
            return error.reason
        except MalformedError:
            return MalformedError

    assert read(cached) == read(first)


# Without integers of more bytes than needed, which only our decoder rejects.
@given(st.lists(st.binary(max_size=30).filter(lambda block: b"\x80" * 4 not in block), max_size=4))
def test_head_reader__any_bytes__decodes_or_rejects_as_the_library(blocks: list[bytes]) -> None:
    plain, reader = Decoder(), HeadReader(1 << 16)
    for block in blocks:
        try:
            expected = tuple(
                (bytes(name), bytes(value)) for name, value in plain.decode(block, raw=True)
            )
        except HPACKError:
            with pytest.raises(BrokenError):
                reader.decode(block)
            return
        try:
            assert reader.decode(block) == expected
        except BrokenError:
            # Stricter than the library: at most two changes of the table's size in a block.
            assert len([byte for byte in block if 0x20 <= byte < 0x40]) > 2
            return


def test_head_reader__very_many_fields__are_charged() -> None:
    reader, few = HeadReader(1 << 14), tuple((b"x", b"%d" % number) for number in range(50))
    reader.read(encode((*head(), *few)))
    assert reader.cost == 0
    reader.decode(encode((*head(), *few * 6)))
    assert reader.cost == (6 + 300 - 128) / 8


def test_head_reader__table_is_changed__forgets_cached_blocks() -> None:
    reader = HeadReader(1 << 16)
    block = encode(tuple(head())) + b"\xbe"  # and the table's newest entry
    for value in (b"1", b"2"):
        reader.decode(b"\x40\x01x\x01" + value)  # is added to the table
        for _ in range(2):
            assert reader.read(block).fields[-1] == (b"x", value)
    reader.decode(b"\x20")  # the table is emptied
    with pytest.raises(BrokenError):
        reader.read(block)


def test_encode__each_table_size__uses_no_dynamic_table() -> None:
    for size in (0, 100, 4096):
        decoder = Decoder()
        decoder.max_allowed_table_size = size
        for start in (NO_TABLE, b"", b""):
            for fields in (HEADERS, (*HEADERS, (b"a", b"b")), OK_TRAILERS):
                assert tuple(decoder.decode(start + encode(fields), raw=True)) == fields
        assert not decoder.header_table.dynamic_entries
