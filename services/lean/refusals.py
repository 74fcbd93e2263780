"""Refusals of known requests, made once for all who are told the same.

A server that is asked for three times what it can do refuses twice as often as it answers, on
the core that the model needs: what a refusal costs, the answers pay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.batching.admission import QueueFullError
from services.http.responses import error_response, to_wire
from services.inference import Inference

if TYPE_CHECKING:
    from services.lean.known import Known
    from services.lean.protocol import LeanProtocol
    from services.lean.repeat import RepeatCycle

_ID = b"x-request-id: "


class Refusals:
    """Tells those who have no answer why; byte for byte what `Inference.refuse` does.

    `expected` is whether the queue was full just now: only then is it asked first of all.
    """

    def __init__(self, inference: Inference) -> None:
        self._inference = inference
        self._told: tuple[str, float] | None = None
        self._headers = b""
        self._start = self._end = b""
        self.expected = False
        self._uncounted = 0  # of those turned away in this turn of the loop

    def tell(self, cycle: RepeatCycle, error: BaseException) -> None:
        """Answer `cycle` that there is no answer."""
        if not isinstance(error, QueueFullError) or not cycle.keep_alive:
            cycle.send_response(self._inference.refuse(error, cycle.request_id()))
            return
        self.expected = True
        self._inference.failed(error)
        cycle.send(self._content(cycle.protocol, cycle.request_id(), error))

    def turn_away(self, protocol: LeanProtocol, known: Known, size: int) -> bool:
        """Whether a request with a body of `size` bytes is refused at once, before it is queued.

        It has come on a connection that is free, and that goes on.
        """
        error = self._inference.refusal(size, known.authorization, known.rows, known.priority)
        if error is None:
            self.expected = False
            return False
        if not self._uncounted:
            protocol.loop.call_soon(self._count, error)
        self._uncounted += 1
        request_id = known.head.request_id or self._inference.new_id()
        protocol.send_content(self._content(protocol, request_id, error))
        return True

    def _count(self, error: QueueFullError) -> None:
        self._inference.failed(error, self._uncounted)
        self._uncounted = 0

    def _content(self, protocol: LeanProtocol, request_id: bytes, error: QueueFullError) -> bytes:
        headers = protocol.server_headers()
        told = (error.message, error.retry_after)
        if told != self._told or headers is not self._headers:
            self._told, self._headers = told, headers
            wire = to_wire(error_response(error, [(_ID[:-2], b"")]), headers, close=False)
            start, _, self._end = wire.partition(_ID)
            self._start = start + _ID
        return b"".join((self._start, request_id, self._end))
