"""Header compression (HPACK, RFC 7541): decodes one client's blocks, encodes without tables.

Calls of a client have the same headers but for some that differ in every call (a request id, a
trace), so a block is decoded once: a whole block if it comes again, else the parts before and after
those headers, whose values stay as they came. All is forgotten when the client's table changes,
because indexes may mean other headers then. The server asks for no table: a proxy would add the
headers of each call to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from functools import lru_cache

from hpack import Encoder, HPACKDecodingError
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.table import HeaderTable

from services.online.grpc.http2.head import FIELD_BYTES, PER_CALL, CallHead, Fields, parse_head
from services.online.grpc.http2.huffman import broken_block, decode_huffman

_huffman = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)
# The names of PER_CALL as strings of a block, with and without Huffman's code.
_PER_CALL_NAMES = {b"%c%b" % (len(name), name): name for name in PER_CALL} | {
    b"%c%b" % (0x80 | len(coded), coded): name
    for name in PER_CALL
    for coded in (_huffman.encode(name),)
}
# The first bytes of literals with a new name: those that enter no table, and with 0x40 also those
# that enter one unless it is empty.
_LITERALS = frozenset({0x00, 0x10})
_ALL_LITERALS = _LITERALS | {0x40}
# Announces an empty table that stays empty, RFC 7541 (6.3), whatever size the client allows.
NO_TABLE = b"\x20"
_STATIC: Fields = HeaderTable.STATIC_TABLE
_MAX_TABLE_BYTES = 4096
_ENTRY_BYTES = 32
# RFC 7541 (4.2). Each empties the table, and takes one byte.
_MAX_RESIZES = 2
_MAX_INTEGER_BYTES = 5
_MAX_BLOCKS = 64
_MAX_BLOCK_BYTES = 512
# A field takes about a microsecond, and may be one byte. No honest call has so many.
_FREE_FIELDS = 64
_FREE = range(_FREE_FIELDS)
_FIELD_COST = 0.125
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
        # The start of the last block up to its first header of one call, what that contains, and
        # the heads of calls that begin so, by what follows their headers of one call.
        self._start = b""
        self._start_fields: Fields = ()
        self._start_bytes = 0
        self._rests: dict[bytes, CallHead] = {}
        self.cost = 0.0

    def read(self, block: bytes) -> CallHead:
        """Return the head of a call.

        Raises BrokenError, and MalformedError if only the call is broken.
        """
        found = self._heads.get(block)
        if found is not None:
            return found
        if not (self._start and block.startswith(self._start)):
            return self._read_whole(block)
        kinds = _LITERALS if self._table_limit else _ALL_LITERALS
        own, rest = _per_call_fields(block, len(self._start), kinds)
        found = self._rests.get(rest)
        if found is None:
            fields = self._start_fields
            head = self._read_whole(block)
            if self._start_fields is fields and own and len(rest) <= _MAX_BLOCK_BYTES:
                self._keep_rest(rest)
            return head
        return _with_per_call(found, own, len(block)) if own else found

    def _read_whole(self, block: bytes) -> CallHead:
        fields, changed = self._decode(block)
        head = parse_head(fields)
        if not (self._start_fields or changed or len(block) > _MAX_BLOCK_BYTES) and head.reusable:
            if len(self._heads) >= _MAX_BLOCKS:
                self._heads.clear()
            self._heads[block] = head
        return head

    def _keep_rest(self, rest: bytes) -> None:
        """Cache the head of calls with the current start and `rest`."""
        fields, changed = self._decode(self._start + rest)
        if changed or any(name in PER_CALL for name, _ in fields):
            return
        if len(self._rests) >= _MAX_BLOCKS:
            self._rests.clear()
        self._rests[rest] = parse_head(fields)

    def decode(self, block: bytes) -> Fields:
        """Return the fields of a block; unwanted blocks are decoded, too: they change the table."""
        return self._decode(block)[0]

    def _decode(self, block: bytes) -> tuple[Fields, bool]:
        """Return the fields, and whether the block changed the table."""
        try:
            fields, changed = self._parse(block)
        except (IndexError, HPACKDecodingError):
            raise broken_block() from None
        if len(fields) > _FREE_FIELDS:
            self.cost += (len(fields) - _FREE_FIELDS) * _FIELD_COST
        return fields, changed

    def _parse(self, block: bytes) -> tuple[Fields, bool]:
        fields: list[tuple[bytes, bytes]] = []
        at = total = resizes = 0
        changed, stable = False, True
        if self._start and block.startswith(self._start):
            fields += self._start_fields
            at, total, stable = len(self._start), self._start_bytes, False
        else:  # it may have a token, which is kept no longer than needed
            self._forget_start()
        size = len(block)
        while at < size:
            begin, byte = at, block[at]
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
                field, at = self._literal(block, at, byte)
                changed = changed or (byte >= 0x40 and self._table_limit > 0)
            if stable and field[0] in PER_CALL:
                stable = False
                if not changed:
                    self._start, self._start_fields = block[:begin], tuple(fields)
                    self._start_bytes, self._rests = total, {}
            fields.append(field)
            total += len(field[0]) + len(field[1]) + _ENTRY_BYTES
            if total > self._max_bytes:
                raise broken_block()
        if changed:  # the same bytes may mean other headers now
            self._heads.clear()
            self._forget_start()
        return tuple(fields), changed

    def _forget_start(self) -> None:
        self._start, self._start_fields, self._rests = b"", (), {}

    def _literal(self, block: bytes, at: int, byte: int) -> tuple[tuple[bytes, bytes], int]:
        """Return a field that is written out, and where the next begins; add it to the table."""
        mask = 0x3F if byte >= 0x40 else 0x0F
        index = byte & mask
        if index:
            index, at = _integer(block, at, index, mask)
            name = self._entry(index)[0]
        else:
            name, at = _string(block, at)
        byte = block[at]
        if byte < 0x7F:  # not Huffman-coded, and the length is one byte: as in `_string`
            end = at + 1 + byte
            if end > len(block):
                raise broken_block()
            value, at = block[at + 1 : end], end
        else:
            value, at = _string(block, at)
        if mask == 0x3F:
            self._add((name, value))
        return (name, value), at

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


def _per_call_fields(block: bytes, at: int, kinds: Container[int]) -> tuple[Fields, bytes]:
    """Return the headers of one call that begin at `at`, and what follows them.

    Their values are strings as they came: to decode Huffman's code takes microseconds. They are
    literals of `kinds`, with a name of PER_CALL, and enter no table; further ones than are free
    belong to what follows, which is decoded and charged.
    """
    found: list[tuple[bytes, bytes]] = []
    size = len(block)
    for _ in _FREE:
        if at + 2 >= size or block[at] not in kinds:
            break
        middle = at + 2 + (block[at + 1] & 0x7F)
        name = _PER_CALL_NAMES.get(block[at + 1 : middle])
        if name is None or middle >= size:
            break
        length = block[middle] & 0x7F
        end = middle + 1 + length
        if length == 0x7F or end > size:
            break
        found.append((name, block[middle:end]))
        at = end
    return tuple(found), block[at:]


def _with_per_call(head: CallHead, own: Fields, size: int) -> CallHead:
    """Return `head` with `own`, headers of PER_CALL whose block has at most `size` bytes."""
    # A byte of Huffman's code is less than two of text.
    size = head.size + 2 * size + len(own) * FIELD_BYTES
    method, path, content_type, timeout, encoding, token, fields, _, plain, _ = head
    # Not by the class: that takes a function's call more.
    return _make(
        CallHead,
        (method, path, content_type, timeout, encoding, token, fields, size, plain, own),
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
