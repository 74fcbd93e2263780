"""One known request and its answer on its connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.batching.batcher import Priority
from services.batching.rawrows import Form
from services.http.responses import Response
from services.lean.desk import Turn
from services.lean.known import Known

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from services.lean.protocol import LeanProtocol


class NoEvent:
    """Stands where uvicorn wakes an ASGI application: nobody waits here."""

    def set(self) -> None:
        """Nothing to wake."""


class RepeatCycle:
    """A caller of the desk; has what uvicorn's protocol looks for in a cycle.

    Its body of `held` bytes was taken in by `Inference.take_in`. If its tensors came as text,
    `places` are those of each in `data`, which is the request until they are read.
    """

    __slots__ = (
        "_request_id", "data", "disconnected", "form", "held", "keep_alive", "key", "known",
        "more_body", "number", "places", "priority", "protocol", "response_complete", "rows",
        "timeout", "turn",
    )  # fmt: skip
    message_event = NoEvent()
    response_started = False
    form: Form
    data: bytes
    rows: int
    key: Hashable
    timeout: float
    priority: Priority
    turn: Turn

    def __init__(
        self,
        protocol: LeanProtocol,
        known: Known,
        data: bytes,
        held: int,
        places: Sequence[slice] = (),
    ) -> None:
        self.protocol = protocol
        self._request_id = known.head.request_id
        self.known = known
        self.data = data
        self.held = held
        self.places = places
        self.form = known.form
        self.rows = known.rows
        self.key = known.key
        self.priority = known.priority
        self.number = -1
        self.keep_alive = True
        self.disconnected = self.more_body = False
        self.response_complete = False
        self.turn = protocol.desk.arrive(self)

    def request_id(self) -> bytes:
        """The caller's own, or one that is made when it is asked for."""
        if not self._request_id:
            self._request_id = self.protocol.inference.new_id()
        return self._request_id

    def done(self) -> bool:
        """Whether nobody waits any more."""
        return self.response_complete

    def send(self, content: bytes) -> None:
        """Send the whole answer."""
        self._end()
        self.protocol.send_content(content)

    def send_response(self, response: Response) -> None:
        """Send the answer, and close the connection if that was asked for meanwhile."""
        self._end()
        self.protocol.send(response, close=not self.keep_alive)

    def set_exception(self, error: BaseException, /) -> None:
        """Answer that there is no answer."""
        self.protocol.desk.refusals.tell(self, error)

    def leave(self) -> None:
        """The client is gone: withdraw what was asked."""
        if self.response_complete:
            return
        self.disconnected = True
        self.protocol.inference.withdraw(self)
        self.protocol.inference.gone()
        self._end()

    def _end(self) -> None:
        self.response_complete = True
        self.data = b""
        self.protocol.inference.let_go(self.held)
