from __future__ import annotations

from hpack import Decoder, Encoder
from hypothesis import given
from hypothesis import strategies as st

from services.lean_grpc.head import HEADERS, OK_TRAILERS
from services.lean_grpc.hpack import ConstantEncoder, RememberingDecoder

FIELD = st.tuples(
    st.sampled_from([b":path", b"te", b"a", b"long-name"]),
    st.sampled_from([b"", b"trailers", b"x", b"y" * 200]),
)
BLOCKS = st.lists(st.tuples(st.lists(FIELD, max_size=5), st.sampled_from([None, 0, 60, 4096])))


@given(BLOCKS)
def test_what_is_remembered_is_what_would_be_decoded(
    blocks: list[tuple[list[tuple[bytes, bytes]], int | None]],
) -> None:
    encoder, plain, remembering = Encoder(), Decoder(), RememberingDecoder(1 << 16)
    for fields, table_size in blocks:
        if table_size is not None:
            encoder.header_table_size = table_size
        for _ in range(2):
            data = encoder.encode(fields)
            assert remembering.decode(data, raw=True) == plain.decode(data, raw=True)


def test_a_block_of_references_is_decoded_once() -> None:
    encoder, decoder = Encoder(), RememberingDecoder(1 << 16)
    decoder.decode(encoder.encode([(b"a", b"b")]), raw=True)
    again = encoder.encode([(b"a", b"b")])
    assert decoder.decode(again, raw=True) is decoder.decode(again, raw=True)


@given(st.lists(st.sampled_from([0, 100, 4096, None]), max_size=6))
def test_the_constant_encoder_follows_the_clients_table(sizes: list[int | None]) -> None:
    encoder = ConstantEncoder((HEADERS, OK_TRAILERS))
    decoder = Decoder()
    decoder.max_allowed_table_size = 4096
    for size in sizes:
        if size is not None:
            encoder.header_table_size = size
        for fields in (HEADERS, (*HEADERS, (b"a", b"b")), OK_TRAILERS):
            assert tuple(decoder.decode(encoder.encode(fields), raw=True)) == fields
    assert not decoder.header_table.dynamic_entries
