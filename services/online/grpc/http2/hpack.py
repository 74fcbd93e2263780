"""Header compression that remembers: a client's calls begin with the same bytes, ours end so.

What clients send is decoded by the library. What is kept of it is bounded, and belongs to one
connection, as it depends on the connection's table. What we send uses no table at all.
"""

from __future__ import annotations

from functools import lru_cache

from hpack import Decoder, Encoder, HPACKDecodingError, HPACKError
from hpack.table import HeaderTable

from services.online.grpc.http2.frames import BrokenError, Reason
from services.online.grpc.http2.head import CallHead, Fields, parse_head

# Says that our table is empty and stays so, RFC 7541 (6.3): whatever size the client allows.
NO_TABLE = b"\x20"
# RFC 7541 (4.2). Each empties the table, and takes one byte.
_MAX_RESIZES = 2
_MAX_BLOCKS = 64
_MAX_BLOCK_BYTES = 512
# A field takes some microseconds, and may be one byte. No honest call has so many.
_FREE_FIELDS = 64
_FIELD_DROPS = 0.125


class _Table(HeaderTable):
    """Knows whether it was changed, and how often resized, since `begin`."""

    changed = False
    resizes = 0

    def begin(self) -> None:
        """Another block is decoded."""
        self.changed, self.resizes = False, 0

    def add(self, name: bytes, value: bytes) -> None:
        self.changed = True
        super().add(name, value)

    @property
    def maxsize(self) -> int:
        return self._maxsize

    @maxsize.setter
    def maxsize(self, newmax: int) -> None:
        self.changed = True
        self.resizes += 1
        if self.resizes > _MAX_RESIZES:
            raise HPACKDecodingError("more sizes of the table than a block may have")
        HeaderTable.maxsize.__set__(self, newmax)  # type: ignore[attr-defined]


class HeadReader:
    """Decodes one connection's header blocks, those that left the table as it was only once.

    `last` is the last block of these, and its head. `drops` grows by what blocks of very many
    fields cost; who charges the client for it sets it to 0 again.
    """

    def __init__(self, max_header_list_size: int) -> None:
        self._decoder = Decoder(max_header_list_size)
        self._table = self._decoder.header_table = _Table()
        self._known: dict[bytes, CallHead] = {}
        self.last: tuple[bytes, CallHead] | None = None
        self.drops = 0.0

    def read(self, block: bytes) -> CallHead:
        """The head of a call. Raises BrokenError, and MalformedError if only the call is broken."""
        if self.last is not None and self.last[0] == block:
            return self.last[1]
        found = self._known.get(block)
        if found is not None:
            self.last = block, found
            return found
        head = parse_head(self.decode(block))
        if not self._table.changed and len(block) <= _MAX_BLOCK_BYTES:
            if head.authorization is None:  # tokens are not kept beyond the next head
                if len(self._known) >= _MAX_BLOCKS:
                    self._known.clear()
                self._known[block] = head
            self.last = block, head
        return head

    def decode(self, block: bytes) -> Fields:
        """The fields of any block, also of one that nobody wants: the table is for all."""
        table = self._table
        table.begin()
        try:
            fields = tuple(self._decoder.decode(block, raw=True))
        except HPACKError:
            raise BrokenError(Reason.COMPRESSION_ERROR, "a header block is broken") from None
        if table.changed:  # what other blocks say may be something else now
            self._known.clear()
            self.last = None
        if len(fields) > _FREE_FIELDS:
            self.drops += (len(fields) - _FREE_FIELDS) * _FIELD_DROPS
        return fields


@lru_cache(maxsize=64)
def encode(fields: Fields) -> bytes:
    """A block that adds nothing to any table: the same bytes for the same fields.

    Nor is it packed: the library does that in Python, and a refusal has many bytes of headers.
    """
    encoder = Encoder()
    return bytes(encoder.encode([(name, value, True) for name, value in fields], huffman=False))
