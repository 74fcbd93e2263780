"""Header compression that remembers: a client's calls begin with the same bytes, ours end so.

Both are the library's own classes. What is kept is bounded, and belongs to one connection
where it depends on the connection's table.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hpack import Decoder, Encoder

Fields = tuple[tuple[bytes, bytes], ...]
_MAX_BLOCKS = 64
_MAX_BLOCK_BYTES = 256


class RememberingDecoder(Decoder):
    """Decodes a block of nothing but references to the table only once.

    Such a block, all of whose bytes have the highest bit set, leaves the table as it is.
    Any other may change it, and then all that is remembered is forgotten.
    """

    def __init__(self, max_header_list_size: int) -> None:
        super().__init__(max_header_list_size)
        self._known: dict[bytes, Any] = {}

    def decode(self, data: bytes, raw: bool = False) -> Any:
        found = self._known.get(data)
        if found is not None:
            return found
        headers = super().decode(data, raw)
        if len(data) > _MAX_BLOCK_BYTES or min(data, default=0) < 0x80:
            self._known.clear()
        elif len(self._known) < _MAX_BLOCKS:
            self._known[bytes(data)] = headers
        return headers


class ConstantEncoder(Encoder):
    """Encodes without a table of its own, so that the same fields are always the same bytes.

    `constants` are the fields that are sent again and again.
    """

    def __init__(self, constants: Iterable[Fields]) -> None:
        super().__init__()
        self._constants = {fields: _encode(fields) for fields in constants}

    def encode(self, headers: Any, huffman: bool = True) -> bytes:
        # A table that the client changed the size of must be told of in the next block.
        fields = tuple(headers)
        if not self.header_table.resized:
            found = self._constants.get(fields)
            if found is not None:
                return found
        return super().encode([(name, value, True) for name, value in fields], huffman)


def _encode(fields: Fields) -> bytes:
    return Encoder().encode([(name, value, True) for name, value in fields])
