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
    from services.lean.repeat import RepeatCycle

_ID = b"x-request-id: "


class Refusals:
    """Tells those who have no answer why; byte for byte what `Inference.refuse` does."""

    def __init__(self, inference: Inference) -> None:
        self._inference = inference
        self._told: tuple[str, float] | None = None
        self._headers = b""
        self._start = self._end = b""

    def tell(self, cycle: RepeatCycle, error: BaseException) -> None:
        """Answer `cycle` that there is no answer."""
        if not isinstance(error, QueueFullError) or not cycle.keep_alive:
            cycle.send_response(self._inference.refuse(error, cycle.request_id()))
            return
        headers = cycle.protocol.server_headers()
        told = (error.message, error.retry_after)
        if told != self._told or headers is not self._headers:
            self._told, self._headers = told, headers
            wire = to_wire(error_response(error, [(_ID[:-2], b"")]), headers, close=False)
            start, _, self._end = wire.partition(_ID)
            self._start = start + _ID
        self._inference.failed(error)
        cycle.send(b"".join((self._start, cycle.request_id(), self._end)))
