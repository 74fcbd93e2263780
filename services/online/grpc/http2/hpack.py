"""Header compression (HPACK, RFC 7541): decodes one client's blocks, encodes without tables.

Calls of a client have the same headers but for some that differ in every call (a request id, a
trace, a length), so a block is decoded once: a whole block if it comes again, else all but the
values of those headers, which stay as they came. All is forgotten when the client's table changes,
because indexes may mean other headers then. The server asks for no table: a proxy would add the
headers of each call to it.
"""

from __future__ import annotations

import re
from collections import deque
from functools import lru_cache
from typing import NamedTuple

from hpack import Encoder, HPACKDecodingError
from hpack.table import HeaderTable

from mlctl.services.online.grpc.http2.head import (
    FIELD_BYTES,
    LENGTH,
    VARYING,
    CallHead,
    Fields,
    length_of,
    parse_head,
    text_of,
)
from mlctl.services.online.grpc.http2.huffman import broken_block, decode_huffman, is_plain

# Announces an empty table that stays empty, RFC 7541 (6.3), whatever size the client allows.
NO_TABLE = b"\x20"
_STATIC: Fields = HeaderTable.STATIC_TABLE
_MAX_TABLE_BYTES = 4096
_ENTRY_BYTES = 32
# RFC 7541 (4.2). Each empties the table, and takes one byte.
_MAX_RESIZES = 2
_MAX_INTEGER_BYTES = 5
_MAX_BLOCKS = 64
_MAX_BLOCK_BYTES = 1024
# Clients behind one proxy share a connection, and differ in their headers.
_MAX_LAYOUTS = 8
# A field takes about a microsecond, and may be one byte. No honest call has so many: a proxy
# passes 100.
_FREE_FIELDS = 128
_FIELD_COST = 0.125
# A valid value that is not Huffman-coded, after its length.
_OWN_VALUE = re.compile(rb"(?s).(?:[^\0\r\n\t ](?:[^\0\r\n]*[^\0\r\n\t ])?)?").fullmatch
_make = tuple.__new__


class HeadReader:
    """Decodes one connection's header blocks.

    `cost` grows by the cost of blocks with very many fields; the connection charges the client for
    it and sets it to 0 again.
    """

    def __init__(self, max_header_list_size: int) -> None:
        self._max_bytes = max_header_list_size
        self._table: deque[tuple[bytes, bytes]] = deque()
        self._table_bytes = 0
        self._table_limit = _MAX_TABLE_BYTES
        self._heads: dict[bytes, CallHead] = {}
        self._layouts: list[_Layout] = []
        self.cost = 0.0

    def read(self, block: bytes) -> CallHead:
        """Return the head of a call.

        Raises BrokenError, and MalformedError if only the call is broken.
        """
        found = self._heads.get(block)
        if found is not None:
            return found
        for layout in self._layouts:
            own = layout.values_of(block)
            if own is not None:
                return _with_own(layout, own, len(block))
        fields, changed, values = self._decode(block)
        head = parse_head(fields)
        if changed or len(block) > _MAX_BLOCK_BYTES or len(fields) > _FREE_FIELDS:
            return head
        if head.reusable:
            if len(self._heads) >= _MAX_BLOCKS:
                self._heads.clear()
            self._heads[block] = head
        else:
            self._keep_layout(block, fields, values)
        return head

    def _keep_layout(self, block: bytes, fields: Fields, values: list[tuple[int, bytes]]) -> None:
        """Cache the head of calls that differ only in `values`: where they begin, of which name."""
        shared = tuple([field for field in fields if field[0] not in VARYING])
        names = {name for _, name in values}
        if len(names) != len(values) or len(shared) + len(values) != len(fields):
            return
        parts, at = [], 0
        for start, name in values:
            if block[start] & 0x7F == 0x7F:
                return
            parts.append((block[at:start], start - at, name))
            at = start + 1 + (block[start] & 0x7F)
        if len(self._layouts) >= _MAX_LAYOUTS:
            self._layouts.clear()
        numbers = {name: number for number, (_, _, name) in enumerate(parts)}
        token, length = numbers.get(b"authorization"), numbers.get(LENGTH)
        self._layouts.append(_Layout(parse_head(shared), tuple(parts), block[at:], token, length))

    def decode(self, block: bytes) -> Fields:
        """Return the fields of a block; unwanted blocks are decoded, too: they change the table."""
        return self._decode(block)[0]

    def _decode(self, block: bytes) -> tuple[Fields, bool, list[tuple[int, bytes]]]:
        """Return the fields, whether the block changed the table, and what `_keep_layout` needs."""
        try:
            fields, changed, values = self._parse(block)
        except (IndexError, HPACKDecodingError):
            raise broken_block() from None
        if len(fields) > _FREE_FIELDS:
            self.cost += (len(fields) - _FREE_FIELDS) * _FIELD_COST
        return fields, changed, values

    def _parse(self, block: bytes) -> tuple[Fields, bool, list[tuple[int, bytes]]]:
        fields: list[tuple[bytes, bytes]] = []
        values: list[tuple[int, bytes]] = []
        at = total = resizes = 0
        changed = False
        size = len(block)
        while at < size:
            byte = block[at]
            at += 1
            if byte >= 0x80:
                index, at = _integer(block, at, byte & 0x7F, 0x7F)
                field = self._entry(index)
            elif byte & 0xE0 == 0x20:
                resizes += 1
                if fields or resizes > _MAX_RESIZES:
                    raise broken_block()
                at = self._resize(block, at, byte & 0x1F)
                changed = True
                continue
            else:
                field, start, at = self._literal(block, at, byte)
                changed = changed or (byte >= 0x40 and self._table_limit > 0)
                if field[0] in VARYING:
                    values.append((start, field[0]))
            fields.append(field)
            total += len(field[0]) + len(field[1]) + _ENTRY_BYTES
            if total > self._max_bytes:
                raise broken_block()
        if changed:  # the same bytes may mean other headers now
            self._heads.clear()
            self._layouts.clear()
        return tuple(fields), changed, values

    def _literal(self, block: bytes, at: int, byte: int) -> tuple[tuple[bytes, bytes], int, int]:
        """Return a field that is written out, and where its value and the next field begin.

        Adds it to the table.
        """
        mask = 0x3F if byte >= 0x40 else 0x0F
        index = byte & mask
        if index:
            index, at = _integer(block, at, index, mask)
            name = self._entry(index)[0]
        else:
            name, at = _string(block, at)
        start, byte = at, block[at]
        if byte < 0x7F:  # not Huffman-coded, and the length is one byte: as in `_string`
            end = at + 1 + byte
            if end > len(block):
                raise broken_block()
            value, at = block[at + 1 : end], end
        else:
            value, at = _string(block, at)
        if mask == 0x3F:
            self._add((name, value))
        return (name, value), start, at

    def _resize(self, block: bytes, at: int, first: int) -> int:
        """Change the table's size, and return where the next field begins."""
        limit, at = _integer(block, at, first, 0x1F)
        if limit > _MAX_TABLE_BYTES:
            raise broken_block()
        self._table_limit = limit
        self._evict(0)
        return at

    def _entry(self, index: int) -> tuple[bytes, bytes]:
        if index == 0:
            raise broken_block()
        return _STATIC[index - 1] if index <= len(_STATIC) else self._table[index - 62]

    def _add(self, field: tuple[bytes, bytes]) -> None:
        size = len(field[0]) + len(field[1]) + _ENTRY_BYTES
        self._evict(size)
        if size <= self._table_limit:
            self._table.appendleft(field)
            self._table_bytes += size

    def _evict(self, room: int) -> None:
        """Drop the oldest entries until `room` bytes are free, or the table is empty."""
        table = self._table
        while table and self._table_bytes + room > self._table_limit:
            name, value = table.pop()
            self._table_bytes -= len(name) + len(value) + _ENTRY_BYTES


class _Layout(NamedTuple):
    """The blocks with the fields of `head` and, in the same places, with values of their own.

    `parts` are the bytes before each value, their number, and its header's name; `rest` follows
    the last one. `token` and `length` are the numbers of the values of Authorization and
    Content-Length.
    """

    head: CallHead
    parts: tuple[tuple[bytes, int, bytes], ...]
    rest: bytes
    token: int | None
    length: int | None

    def values_of(self, block: bytes) -> Fields | None:
        """Return the values in `block` with their names, or None if it is no such block.

        They are strings as they came: to decode Huffman's code takes microseconds. One of 127
        bytes or more is not found.
        """
        found: Fields = ()
        at, size = 0, len(block)
        for fixed, taken, name in self.parts:
            if not block.startswith(fixed, at):
                return None
            at += taken
            if at >= size or block[at] & 0x7F == 0x7F:
                return None
            start, at = at, at + 1 + (block[at] & 0x7F)
            value = block[start:at]
            if not (is_plain(value[1:]) if value[0] >= 0x80 else _OWN_VALUE(value)):
                return None
            found += ((name, value),)
        return found if at <= size and block[at:] == self.rest else None


def _with_own(layout: _Layout, own: Fields, size: int) -> CallHead:
    """Return the layout's head with `own`, headers whose block has at most `size` bytes."""
    head = layout.head
    *first, token, fields, shared, named, is_grpc, plain, _, length = head
    if layout.token is not None:
        token = text_of(own[layout.token][1])
    if layout.length is not None:
        value = own[layout.length][1]
        length = length_of(value[1:] if value[0] < 0x80 else text_of(value))
    # A byte of Huffman's code is less than two of text.
    size = shared + 2 * size + len(own) * FIELD_BYTES
    # Not by the class: that takes a function's call more.
    return _make(
        CallHead,
        (*first, token, fields, size, named, is_grpc, plain, own, length),
    )


def _integer(block: bytes, at: int, value: int, mask: int) -> tuple[int, int]:
    """Return the integer whose first bits are `value`, and where the next field begins."""
    if value != mask:
        return value, at
    for shift in range(0, 7 * _MAX_INTEGER_BYTES, 7):
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise broken_block()


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    """Return the string at `at`, and where the next field begins."""
    byte = block[at]
    length, at = _integer(block, at + 1, byte & 0x7F, 0x7F)
    end = at + length
    if end > len(block):
        raise broken_block()
    text = block[at:end]
    return (decode_huffman(text) if byte >= 0x80 else text), end


@lru_cache(maxsize=64)
def encode(fields: Fields) -> bytes:
    """Return a block that adds nothing to any table: the same bytes for the same fields.

    It is not Huffman-coded: that is slow in Python, and an error has many bytes of headers.
    """
    encoder = Encoder()
    return bytes(encoder.encode([(name, value, True) for name, value in fields], huffman=False))


def literal(name: bytes, value: bytes) -> bytes:
    """Return one field as `encode` writes it; several of them are a block."""
    return b"\0%b%b" % (string(name), string(value))


def string(text: bytes) -> bytes:
    """Return a string of up to 16 KiB as a part of a block."""
    size = len(text)
    if size < 0x7F:
        return b"%c%b" % (size, text)
    size -= 0x7F
    if size < 0x80:
        return b"\x7f%c%b" % (size, text)
    return b"\x7f%c%c%b" % (size & 0x7F | 0x80, size >> 7, text)
