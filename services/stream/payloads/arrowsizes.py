"""How large an Arrow message becomes in memory, known before it does.

Compressed buffers say at their beginning how large they will be. Arrow believes them, and a few
kilobytes may say gigabytes; so may a dictionary with one long text for many rows, and a list of
nulls, of which no byte is stored.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

# Of the flatbuffers in format/Message.fbs: fields by their numbers.
_HEADER, _DICTIONARY_DATA = 2, 1
_BUFFERS, _COMPRESSION = 2, 3
# A Buffer's offset and length, and what a compressed one begins with.
_BUFFER, _SIZE = struct.Struct("<qq"), struct.Struct("<q")
_SHORT, _INT = struct.Struct("<H"), struct.Struct("<i")


def inflated_bytes(message: pa.Buffer) -> int:
    """Bytes that the compressed buffers of an IPC stream unpack to; 0 if it has none.

    pyarrow's errors, and struct.error or IndexError, for what is no such stream.
    """
    import pyarrow as pa

    reader = pa.ipc.MessageReader.open_stream(message)
    return sum(_inflated(part) for part in reader if part.body is not None)


def written_out_bytes(table: pa.Table) -> int:
    """Bytes of what stands for more than it stores, once it is in the rows, at most."""
    return sum(_written_out(chunk) for column in table.columns for chunk in column.chunks)


def _inflated(part: Any) -> int:
    metadata = memoryview(part.metadata)
    header = _field(metadata, _pointed(metadata, 0), _HEADER)
    if header and part.type == "dictionary":
        header = _field(metadata, _pointed(metadata, header), _DICTIONARY_DATA)
    if not header:
        return 0
    batch = _pointed(metadata, header)
    if not _field(metadata, batch, _COMPRESSION):
        return 0
    body = memoryview(part.body)
    return sum(
        max(length, _SIZE.unpack_from(body, offset)[0])
        for offset, length in _buffers(metadata, batch)
        if length >= _SIZE.size
    )


def _buffers(metadata: memoryview, batch: int) -> Iterator[tuple[int, int]]:
    at = _field(metadata, batch, _BUFFERS)
    if not at:
        return
    start = _pointed(metadata, at)
    (count,) = _INT.unpack_from(metadata, start)
    start += _INT.size
    yield from _BUFFER.iter_unpack(metadata[start : start + count * _BUFFER.size])


def _pointed(metadata: memoryview, at: int) -> int:
    """Where the offset at `at` leads."""
    return at + int(_INT.unpack_from(metadata, at)[0])


def _field(metadata: memoryview, table: int, number: int) -> int:
    """Where the field of a table is; 0 if it is not there."""
    fields = table - int(_INT.unpack_from(metadata, table)[0])
    at = _SHORT.size * (2 + number)
    if at >= _SHORT.unpack_from(metadata, fields)[0]:
        return 0
    (offset,) = _SHORT.unpack_from(metadata, fields + at)
    return table + int(offset) if offset else 0


def _written_out(array: Any) -> int:
    from pyarrow import compute, types

    array = getattr(array, "storage", array)
    while (
        types.is_list(array.type)
        or types.is_large_list(array.type)
        or (types.is_fixed_size_list(array.type))
    ):
        array = array.flatten()
    kind = array.type
    if types.is_null(kind):
        return len(array)
    if not types.is_dictionary(kind):
        return 0
    text = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    if not any(test(kind.value_type) for test in text):
        return 0
    longest = compute.max(compute.binary_length(array.dictionary)).as_py() or 0
    return int(longest) * len(array)
