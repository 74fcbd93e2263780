"""What a request means whose every byte but its tensors came before: nothing of it is parsed again.

A client sends the same HTTP head and the same V2 header again and again, before tensors of a
fixed size, or around the numbers of its JSON. All that is checked of such a request but its
token, its numbers and the room that there is for it follows from those bytes, so it is
remembered with them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import NamedTuple

import numpy as np

from bundle.errors import MlctlError
from bundle.tensors import Datatype, TensorSpec
from services.online.batching.rawrows import Form
from services.online.batching.scheduler import Priority
from services.online.http.connection.frames import Frame, fill, find_frame
from services.online.http.connection.numbers import CODES, pack_of
from services.online.http.inference import InferHandler, PendingRequest, RequestHead
from services.protocol.compression import IDENTITY
from services.protocol.wire import InferRequest, declare

_KEPT = 256
_KEPT_BYTES = 4096
# What their bytes say has to be looked at in each request, or is of no fixed size.
_LOOKED_AT = frozenset({Datatype.BOOL, Datatype.BYTES})
# Each input of a frame's probe can have another number.
_MOST_INPUTS = 100


Tails = tuple[tuple[int, ...], ...]


class RenderedResponse(NamedTuple):
    """An answer but for its timing, its id and its tensors; `tails` are its rows' shapes.

    `start` goes up to the content's length and, if that is always the same, has it; `end` goes
    from after the id to the first tensor, and text has `others` after each of its tensors.
    `fixed` is how much of text is no tensor; one that `packs` may have to be compressed, if
    it is text only where it is long.
    """

    tails: Tails
    start: bytes
    end: bytes
    others: tuple[bytes, ...]
    fixed: int
    packs: bool


class KnownRequest:
    """A request but for its tensors.

    `prefix` are the bytes before binary ones, `size` is all of it and `body_size` its body;
    those in JSON have a `frame`, and `packs` that make tensors of numbers. The tensors of the
    answer are `binary`, or else all in its JSON.
    """

    __slots__ = (
        "authorization", "binary", "body_size", "form", "frame", "head", "key", "outputs",
        "packs", "prefix", "priority", "rendered", "request", "rows", "size", "timeout",
    )  # fmt: skip

    def __init__(
        self,
        source: bytes | Frame,
        head: RequestHead,
        request: InferRequest,
        form: Form,
        key: Hashable,
        outputs: Mapping[str, TensorSpec],
    ) -> None:
        self.frame = source if isinstance(source, Frame) else None
        self.prefix = b"" if isinstance(source, Frame) else source
        declared = form.declared.values() if isinstance(source, Frame) else ()
        self.packs = tuple(pack_of(each) for each in declared)
        self.size = max(place.stop for place in form.places.values())
        self.body_size = self.size - self.prefix.find(b"\r\n\r\n") - 4
        self.head = head
        self.request = request._replace(inputs={})
        self.form = form
        self.rows = next(iter(form.declared.values())).shape[0]
        self.outputs = {name: outputs[name] for name in request.outputs}
        self.binary = any(request.outputs.values())
        self.key = key
        self.timeout = request.timeout
        self.priority: Priority = head.priority or request.priority
        self.authorization: bytes | None = None
        self.rendered: RenderedResponse | None = None


class KnownRequests:
    """The requests of one model's clients that may well come again."""

    def __init__(self, inference: InferHandler) -> None:
        signature = inference.signature
        self._inference = inference
        self._inputs = {spec.name: spec for spec in signature.inputs}
        types = {spec.dtype for spec in signature.inputs}
        self._fits_raw = types.isdisjoint(_LOOKED_AT)
        self._fits_text = types <= CODES.keys() and len(self._inputs) <= _MOST_INPUTS
        self._outputs = {
            spec.name: spec for spec in signature.outputs if spec.dtype is not Datatype.BYTES
        }
        self._kept: dict[Hashable, KnownRequest] = {}

    def learn(
        self, data: bytes, headers: Mapping[bytes, bytes], asked: PendingRequest
    ) -> KnownRequest | None:
        """What to expect of the next request that is like `data`; None if nothing.

        `data` is one whole request, of which the rest was made; it was found to be right.
        """
        head = asked.head
        source = self._source(data, headers, head)
        if source is None:
            return None
        name = _name(source)
        known = self._kept.get(name)
        if known is None and (known := self._make(source, asked)) is not None:
            known.authorization = headers.get(b"authorization")
            given = headers.get(b"x-request-id")
            known.head = head._replace(request_id=given if head.request_id == given else b"")
            # A head with a caller's token stays on the caller's own connection.
            if known.authorization is None:
                if len(self._kept) >= _KEPT:
                    self._kept.clear()
                self._kept[name] = known
        return known

    def find(
        self, data: bytes, headers: Mapping[bytes, bytes], head: RequestHead
    ) -> KnownRequest | None:
        """What is known already of requests that are like `data`, which is whole."""
        source = self._source(data, headers, head)
        return None if source is None else self._kept.get(_name(source))

    def _source(
        self, data: bytes, headers: Mapping[bytes, bytes], head: RequestHead
    ) -> bytes | Frame | None:
        """What would be there again: all before the binary data, or around the numbers."""
        declared, body = headers.get(b"content-length"), data.find(b"\r\n\r\n") + 4
        if declared is None or head.coding != IDENTITY or body + int(declared) != len(data):
            return None
        if head.json_length is None:
            return find_frame(data, body) if self._fits_text else None
        end = body + head.json_length
        return data[:end] if self._fits_raw and head.json_length and end <= _KEPT_BYTES else None

    def _make(self, source: bytes | Frame, asked: PendingRequest) -> KnownRequest | None:
        request = asked.request
        inputs, wanted = request.inputs, request.outputs
        if request.keys or not wanted.keys() <= self._outputs.keys():
            return None
        if len(set(wanted.values())) > 1 or not all(array.size for array in inputs.values()):
            return None
        key = self._inference.join_key(inputs)
        if key is None or not self._is_whole(source, asked):
            return None
        places, start = {}, 0 if isinstance(source, Frame) else len(source)
        for name, array in inputs.items():
            places[name] = slice(start, start + array.nbytes)
            start += array.nbytes
        declared = {
            name: declare(self._inputs, name, self._inputs[name].dtype.value, array.shape)
            for name, array in inputs.items()
        }
        return KnownRequest(source, asked.head, request, Form(declared, places), key, self._outputs)

    def _is_whole(self, source: bytes | Frame, asked: PendingRequest) -> bool:
        """Whether all tensors are binary, or all in the arrays of the frame, in their order."""
        if not isinstance(source, Frame):
            length = asked.head.json_length or 0
            header = self._inference.lasting(source[len(source) - length :])
            return header is not None and all(part.size for part in header.parts)
        # Twice, as an array that stands elsewhere may be the same as one of the probes by chance.
        return len(asked.request.inputs) == len(source.others) and all(
            self._probe(source, asked, first) for first in (0, 1)
        )

    def _probe(self, frame: Frame, asked: PendingRequest, first: int) -> bool:
        """Whether each input is what its array has: `first` in the first one, and so on."""
        inputs = asked.request.inputs
        values = [
            b",".join([b"%d" % number] * array.size)
            for number, array in enumerate(inputs.values(), first)
        ]
        try:
            probe = self._inference.decode(asked.head, fill(frame, values))
        except MlctlError:
            return False
        return [*probe.inputs] == [*inputs] and all(
            np.all(array == number) for number, array in enumerate(probe.inputs.values(), first)
        )


def _name(source: bytes | Frame) -> Hashable:
    return source.key if isinstance(source, Frame) else source
