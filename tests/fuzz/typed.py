"""A target: messages to a model's typed gRPC service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import strategies as st

from mlctl.core.errors import ErrorCode
from mlctl.services.online.grpc.typed.codec import TypedCodec
from mlctl.services.online.grpc.typed.descriptors import make_messages
from mlctl.services.online.grpc.typed.layout import lay_out
from mlctl.services.online.openapi.model import describe
from tests.fuzz.documents import SIGNATURE, answer_of
from tests.fuzz.target import Feed, Target

_LAYOUT = lay_out(describe("m", "v", SIGNATURE))


@contextmanager
def _typed() -> Iterator[Feed]:
    codec = TypedCodec(_LAYOUT, "v", SIGNATURE)
    yield lambda data: answer_of(codec.decode(data))


@st.composite
def _messages(draw: st.DrawFn) -> bytes:
    request = make_messages(_LAYOUT).request
    pieces = b""
    for _ in range(draw(st.integers(1, 2))):
        shape = st.lists(st.sampled_from([0, 1, 4, -1, 1 << 40, (1 << 63) - 1]), max_size=3)
        message = request(
            x=draw(st.lists(st.floats(width=32), max_size=8)),
            n=draw(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=8)),
            s=draw(st.lists(st.binary(max_size=3), max_size=8)),
            x_shape=draw(shape),
            s_shape=draw(shape),
        )
        pieces += message.SerializeToString()
    single = draw(st.lists(st.binary(min_size=4, max_size=4), max_size=4))
    return pieces + b"".join(b"\x5d" + value for value in single)


TYPED = (
    Target(
        "typed-message",
        _typed,
        _messages(),
        frozenset({ErrorCode.INVALID_INPUT, ErrorCode.PAYLOAD_TOO_LARGE}),
    ),
)
