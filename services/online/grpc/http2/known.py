"""What an infer call means that came before but for its tensors and its id: not parsed again.

Protobuf messages may be put together: one with raw contents is the same message without them
and then each of them after its tag and length. So for tensors of fixed sizes all else of a
message is the same bytes in the same places, and all that is checked of it follows from them.
Only its id may come between, which the answer has in the same bytes.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from bundle.errors import MlctlError
from bundle.tensors import Datatype
from services.online.batching.rawrows import Form
from services.online.grpc.http2.ids import cut_id, field_head, id_in, is_id
from services.online.grpc.http2.messages import PREFIX_BYTES, frame, prefix
from services.online.grpc.http2.sending import MAX_FRAME_BYTES
from services.online.models.served_model import ServedModel
from services.protocol.priority import Priority
from services.protocol.wire import InferRequest, declare

# Tags of the last fields of the two messages, with what has a length.
_RAW_INPUT = b"\x3a"
_RAW_OUTPUT = b"\x32"
_KEPT = 256
_KEPT_OF_SIZE = 8
_KEPT_BYTES = 4096
# The field of an id.
_PROBE = field_head(b"\x1a", 1) + b"?"
# What their bytes say has to be looked at in each request, or is of no fixed size.
_LOOKED_AT = frozenset({Datatype.BOOL, Datatype.BYTES})


class RenderedMessage(NamedTuple):
    """An answer but for its tensors, whose rows have the shapes `tails`, and its id.

    `starts` are the bytes before each of them: the first begins with the frame of the message,
    and has the id at `place`.
    """

    tails: tuple[tuple[int, ...], ...]
    starts: tuple[bytes, ...]
    place: int


class KnownCall:
    """A framed message of `size` bytes but for its tensors; `gaps` are the bytes between those.

    It has no id; one that is alike may have it at `place`.
    """

    __slots__ = (
        "form", "gaps", "key", "outputs", "place", "priority", "rendered", "request", "rows",
        "size", "start", "timeout",
    )  # fmt: skip

    def __init__(
        self,
        start: bytes,
        gaps: tuple[tuple[int, bytes], ...],
        size: int,
        form: Form,
        request: InferRequest,
        key: Hashable,
        outputs: Mapping[str, Datatype],
    ) -> None:
        self.start = start
        self.place = cut_id(start, PREFIX_BYTES)[0]
        self.gaps = gaps
        self.size = size
        self.form = form
        self.rows = next(iter(form.declared.values())).shape[0]
        self.key = key
        self.request = request._replace(id="", inputs={})
        self.timeout = request.timeout
        self.priority: Priority = request.priority
        self.outputs = outputs
        self.rendered: RenderedMessage | None = None

    def id_of(self, data: bytes) -> bytes | None:
        """The field of the id that `data` has, which may be none; None if `data` is not alike.

        Without those bytes at its beginning it would be this with some tensors.
        """
        more = len(data) - self.size
        found = b""
        if more:
            place = self.place
            found = data[place : place + more]
            if more < 0 or not is_id(found) or data[:PREFIX_BYTES] != prefix(len(data)):
                return None
            first, rest = self.start[PREFIX_BYTES:place], self.start[place:]
            if not data.startswith(first, PREFIX_BYTES) or not data.startswith(rest, place + more):
                return None
        elif not data.startswith(self.start):
            return None
        for at, gap in self.gaps:
            if not data.startswith(gap, at + more):
                return None
        return found


class KnownCalls:
    """The infer messages to one model that may well come again."""

    def __init__(self, host: ServedModel) -> None:
        signature = host.signature
        self._host = host
        self._inputs = {spec.name: spec for spec in signature.inputs}
        self._fit = _LOOKED_AT.isdisjoint(spec.dtype for spec in signature.inputs)
        self._outputs = {
            spec.name: spec.dtype for spec in signature.outputs if spec.dtype is not Datatype.BYTES
        }
        self._kept: dict[int, list[KnownCall]] = {}
        self._count = 0

    def find(self, data: bytes) -> KnownCall | None:
        """What is known of a framed message."""
        start, stop = cut_id(data, PREFIX_BYTES)
        for known in self._kept.get(len(data) - (stop - start), ()):
            if known.id_of(data) is not None:
                return known
        return None

    def learn(self, message: bytes, parsed: Any, request: InferRequest) -> None:
        """Remember what a message means, if that lasts; it was answered."""
        start, stop = cut_id(message)
        message = message[:start] + message[stop:]
        size = len(message) + PREFIX_BYTES
        if not self._fit or request.keys or size > MAX_FRAME_BYTES:
            return
        raw = parsed.raw_input_contents
        if not raw or not all(raw) or not self._outputs.keys() >= request.outputs.keys():
            return
        key = self._key(request)
        if key is None or len(self._kept.get(size, ())) >= _KEPT_OF_SIZE:
            return
        if self.find(frame(message)) is None:
            known = self._make(message, parsed, request, key)
            if known is not None:
                self._keep(known)

    def _key(self, request: InferRequest) -> Hashable | None:
        """What its rows are joined by; None as well where each request is looked at by itself."""
        if self._host.observer is not None:
            return None
        try:
            return self._host.join_key(request.inputs)
        except MlctlError:  # the model serves no more
            return None

    def _keep(self, known: KnownCall) -> None:
        if self._count >= _KEPT:
            self._kept.clear()
            self._count = 0
        self._kept.setdefault(known.size, []).append(known)
        self._count += 1

    def _make(
        self, message: bytes, parsed: Any, request: InferRequest, key: Hashable
    ) -> KnownCall | None:
        raw = parsed.raw_input_contents
        cut = split(message, raw, _RAW_INPUT)
        if cut is None or len(cut[0]) > _KEPT_BYTES:
            return None
        start, *between = cut
        place, end = cut_id(start, PREFIX_BYTES)[0], -len(field_head(_RAW_INPUT, len(raw[0])))
        probe = start[PREFIX_BYTES:place] + _PROBE + start[place:end]
        try:  # without its tensors it is still a message, so the end was nothing but them
            bare = type(parsed).FromString(probe)
        except DecodeError:
            return None
        if bare.raw_input_contents or bare.id != id_in(_PROBE):  # a later id would be its id
            return None
        at, gaps, places, declared = len(start), [], {}, {}
        for tensor, content, gap in zip(parsed.inputs, raw, [*between, b""], strict=True):
            specs = declare(self._inputs, tensor.name, tensor.datatype, tensor.shape)
            declared[tensor.name] = specs
            places[tensor.name] = slice(at, at + len(content))
            at += len(content)
            gaps.append((at, gap))
            at += len(gap)
        form = Form(declared, places)
        outputs = {name: self._outputs[name] for name in request.outputs}
        return KnownCall(start, tuple(gaps[:-1]), at, form, request, key, outputs)


def split(message: bytes, contents: Any, tag: bytes) -> list[bytes] | None:
    """The bytes of the framed message before each of its raw contents; None if it has more.

    `contents` are its last fields, each after `tag`.
    """
    between = [field_head(tag, len(content)) for content in contents]
    tail = b"".join(part for pair in zip(between, contents, strict=True) for part in pair)
    if not message.endswith(tail):
        return None
    return [frame(message)[: len(message) + PREFIX_BYTES - len(tail)] + between[0], *between[1:]]


def render(message: Any, tails: tuple[tuple[int, ...], ...]) -> RenderedMessage:
    """A ModelInferResponse that we made, without an id."""
    starts = split(message.SerializeToString(), message.raw_output_contents, _RAW_OUTPUT)
    assert starts is not None
    return RenderedMessage(tails, tuple(starts), cut_id(starts[0], PREFIX_BYTES)[0])


def with_id(answer: bytes, place: int, field: bytes) -> bytes:
    """A framed answer with the field of its id."""
    size = prefix(len(answer) + len(field))
    return b"".join((size, answer[PREFIX_BYTES:place], field, answer[place:]))
