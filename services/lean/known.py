"""What a request means whose every byte but its tensors came before: nothing of it is parsed again.

A client sends the same HTTP head and the same V2 header again and again, before tensors of a
fixed size. All that is checked of such a request but its token and the room that there is for
it follows from those bytes, so it is remembered with them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import NamedTuple

from bundle.tensors import Datatype
from services.batcher import Priority
from services.encoding import IDENTITY
from services.header import Header
from services.inference import Asked, Head, Inference
from services.rawrows import Form
from services.wire import InferRequest

_KEPT = 256
_KEPT_BYTES = 4096
# What their bytes say has to be looked at in each request, or is of no fixed size.
_LOOKED_AT = frozenset({Datatype.BOOL, Datatype.BYTES})


Tails = tuple[tuple[int, ...], ...]


class Rendered(NamedTuple):
    """An answer but for its timing, its id and its tensors; `tails` are its rows' shapes.

    `start` goes up to the content's length, `end` from the header after the id to the JSON's
    end. One that `packs` may have to be compressed.
    """

    tails: Tails
    start: bytes
    end: bytes
    packs: bool


class Known:
    """A request but for its tensors. `prefix` are the bytes before them, `size` is all of it."""

    __slots__ = (
        "authorization", "body_bytes", "form", "head", "key", "outputs", "prefix", "priority",
        "rendered", "request", "rows", "size", "timeout",
    )  # fmt: skip

    def __init__(
        self,
        prefix: bytes,
        head: Head,
        header: Header,
        form: Form,
        key: Hashable,
        outputs: Mapping[str, Datatype],
    ) -> None:
        self.prefix = prefix
        self.size = max(place.stop for place in form.places.values())
        self.body_bytes = 0
        self.head = head
        self.request = InferRequest("", {}, header.outputs, header.timeout, header.priority)
        self.form = form
        self.rows = header.parts[0].declared.shape[0]
        self.outputs = outputs
        self.key = key
        self.timeout = header.timeout
        self.priority: Priority = head.priority or header.priority
        self.authorization: bytes | None = None
        self.rendered: Rendered | None = None


class Memory:
    """The requests of one model's clients that may well come again."""

    def __init__(self, inference: Inference) -> None:
        signature = inference.signature
        self._inference = inference
        self._inputs = {spec.name: spec for spec in signature.inputs}
        self._fit = _LOOKED_AT.isdisjoint(spec.dtype for spec in signature.inputs)
        self._outputs = {
            spec.name: spec.dtype for spec in signature.outputs if spec.dtype is not Datatype.BYTES
        }
        self._kept: dict[bytes, Known] = {}

    def learn(self, data: bytes, headers: Mapping[bytes, bytes], asked: Asked) -> Known | None:
        """What to expect of the next request that begins as `data` does; None if nothing.

        `data` is one whole request, of which the rest was made; it was found to be right.
        """
        head = asked.head
        length, declared = head.json_length, headers.get(b"content-length")
        if not self._fit or not length or declared is None or head.coding != IDENTITY:
            return None
        body = data.find(b"\r\n\r\n") + 4
        prefix = data[: body + length]
        if len(prefix) > _KEPT_BYTES or body + int(declared) != len(data):
            return None
        known = self._kept.get(prefix)
        if known is None and (known := self._make(prefix, length, asked)) is not None:
            known.body_bytes = int(declared)
            known.authorization = headers.get(b"authorization")
            given = headers.get(b"x-request-id")
            known.head = head._replace(request_id=given if head.request_id == given else b"")
            if len(self._kept) >= _KEPT:
                self._kept.clear()
            self._kept[prefix] = known
        return known

    def _make(self, prefix: bytes, length: int, asked: Asked) -> Known | None:
        header = self._inference.lasting(prefix[len(prefix) - length :])
        if header is None or not self._is_plain(header):
            return None
        key = self._inference.join_key(asked.request.inputs)
        if key is None:
            return None
        places, start = {}, len(prefix)
        for part in header.parts:
            end = start + (part.size or 0)
            places[part.declared.spec.name] = slice(start, end)
            start = end
        form = Form({part.declared.spec.name: part.declared for part in header.parts}, places)
        outputs = {name: self._outputs[name] for name in header.outputs}
        return Known(prefix, asked.head, header, form, key, outputs)

    def _is_plain(self, header: Header) -> bool:
        """Whether all is binary, and nothing is empty."""
        return all(part.size for part in header.parts) and all(
            binary and name in self._outputs for name, binary in header.outputs.items()
        )
