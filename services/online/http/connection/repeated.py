"""Known requests over HTTP: one at a time on its connection, and all of one loop tick together.

A request that repeats an earlier one but for its tensors (see `known`) is not parsed again. A
`RepeatCycle` is one such request; the `RepeatDesk` queues, answers and counts all that arrived
in one tick of the event loop. The responses are, byte for byte, those of `InferHandler.answer`.

Rejections are rendered once for all requests that get the same one: a server at three times its
capacity rejects twice as often as it answers, on the core that the model needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from time import perf_counter
from typing import Any, Protocol

from uvicorn.server import ServerState

from services.online.batching.admission import QueueFullError
from services.online.batching.desks import Told
from services.online.batching.executor import Answer
from services.online.batching.joining import Arrays, Share, cut
from services.online.batching.rawrows import Form
from services.online.batching.scheduler import Priority
from services.online.http.connection.known import KnownRequest
from services.online.http.connection.numbers import read_numbers
from services.online.http.connection.plans import ResponsePlan, make_plan
from services.online.http.inference import InferHandler, PendingRequest, timing
from services.online.http.responses import Response, error_response, to_wire
from services.protocol.wire import encode_raw

_ID = b"x-request-id: "
_STATUS = b"HTTP/1.1 200 OK\r\n"
_MOMENT = b"server-timing: %b\r\nx-request-id: "


class Turn:
    """The requests that came in one turn of the loop; to read each took `parse` seconds."""

    __slots__ = ("parse",)

    def __init__(self) -> None:
        self.parse = 0.0


class RequestConnection(Protocol):
    """What a known request needs of its HTTP connection."""

    loop: asyncio.AbstractEventLoop
    inference: InferHandler
    desk: RepeatDesk
    server_state: ServerState

    def server_headers(self) -> bytes:
        """Return the server's own header lines."""

    def send_content(self, content: bytes) -> None:
        """Send a whole response that keeps the connection open."""

    def send(self, response: Response, *, close: bool) -> None:
        """Send `response`, then close the connection if asked to."""


class NoEvent:
    """Stands where uvicorn wakes an ASGI application: nobody waits here."""

    def set(self) -> None:
        """Nothing to wake."""


class RepeatCycle:
    """A caller of the desk; has what uvicorn's protocol looks for in a cycle.

    Its body of `held` bytes was taken in by `InferHandler.take_in`. If its tensors came as text,
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
        protocol: RequestConnection,
        known: KnownRequest,
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


class Refusals:
    """Tells those who have no answer why; byte for byte what `InferHandler.refuse` does.

    `expected` is whether the queue was full just now: only then is it asked first of all.
    """

    def __init__(self, inference: InferHandler) -> None:
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

    def turn_away(self, protocol: RequestConnection, known: KnownRequest, size: int) -> bool:
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

    def _content(
        self, protocol: RequestConnection, request_id: bytes, error: QueueFullError
    ) -> bytes:
        headers = protocol.server_headers()
        told = (error.message, error.retry_after)
        if told != self._told or headers is not self._headers:
            self._told, self._headers = told, headers
            wire = to_wire(error_response(error, [(_ID[:-2], b"")]), headers, close=False)
            start, _, self._end = wire.partition(_ID)
            self._start = start + _ID
        return b"".join((self._start, request_id, self._end))


class RepeatDesk:
    """Speaks for the known requests of one model's connections."""

    def __init__(self, inference: InferHandler) -> None:
        self.refusals = Refusals(inference)
        self._inference = inference
        self._arrived: list[RepeatCycle] = []
        self._turn = Turn()
        self._began = 0.0

    def arrive(self, cycle: RepeatCycle) -> Turn:
        """A request came; it is queued with all others of this turn, which is returned."""
        if not self._arrived:
            self._turn, self._began = Turn(), perf_counter()
            asyncio.get_running_loop().call_soon(self._submit)
        self._arrived.append(cycle)
        return self._turn

    def _submit(self) -> None:
        arrived, self._arrived = self._arrived, []
        waiting = [cycle for cycle in arrived if not cycle.response_complete]
        seconds = self._inference.seconds
        for cycle in waiting:
            wanted = cycle.known.timeout
            cycle.timeout = seconds if wanted is None or wanted > seconds else wanted
        try:
            if texts := [cycle for cycle in waiting if cycle.places]:
                read_all(texts, self._inference)
                waiting = [cycle for cycle in waiting if not cycle.response_complete]
            self._turn.parse = (perf_counter() - self._began) / len(arrived)
            self._inference.submit_all(waiting, self)
        except Exception as error:  # noqa: BLE001 - it is logged and answered
            for cycle in waiting:
                if not cycle.response_complete:
                    self._inference.withdraw(cycle)
                    cycle.set_exception(error)

    def answer(self, told: list[Told], seconds: float) -> None:
        """See `services.online.batching.desks.Desk`."""
        before = perf_counter()
        outputs: Arrays | None = None
        waited, moment = -1.0, b""
        plans = dict[KnownRequest, ResponsePlan | None]()
        ready: list[tuple[RepeatCycle, bytes]] = []
        turns: dict[Turn, tuple[int, float]] = {}
        cycle: RepeatCycle
        state: Any = None
        headers = b""
        for cycle, share, wait in told:
            if share[0] is not outputs:
                outputs, plans = share[0], {}
            if wait != waited:
                waited, moment = wait, _MOMENT % timing(wait, seconds)
            known = cycle.known
            if known not in plans:
                plans[known] = self._try_plan(known, share)
            plan = plans[known]
            if plan is None or not cycle.keep_alive:
                self._answer_alone(cycle, share, wait, seconds)
                continue
            start, chunks = plan.parts(share[1], share[1] + known.rows)
            if cycle.protocol.server_state is not state:
                state, headers = cycle.protocol.server_state, cycle.protocol.server_headers()
            parts = (_STATUS, headers, start, moment, cycle.request_id(), plan.end, *chunks)
            ready.append((cycle, b"".join(parts)))
            turns[cycle.turn] = (turns[cycle.turn][0] + 1 if cycle.turn in turns else 1, wait)
        serialize = (perf_counter() - before) / max(1, len(ready))
        for cycle, content in ready:
            cycle.send(content)
        # Who waits need not wait for this, too.
        for turn, (count, wait) in turns.items():
            self._inference.answered(count, turn.parse, wait, seconds, serialize)

    def _answer_alone(self, cycle: RepeatCycle, share: Share, wait: float, seconds: float) -> None:
        """The long way: an answer that is packed or ends its connection, or that failed."""
        asked = PendingRequest(cycle.known.head._replace(request_id=cycle.request_id()))
        asked.request, asked.parse_seconds = cycle.known.request, cycle.turn.parse
        rows = next(iter(share[0].values())).shape[0] if share[0] else 0
        try:
            answer = Answer(cut(share), wait, seconds, rows)
            response = self._inference.answer(asked, answer)
        except Exception as error:  # noqa: BLE001 - it is logged and answered
            cycle.set_exception(error)
        else:
            cycle.send_response(response)

    def _try_plan(self, known: KnownRequest, share: Share) -> ResponsePlan | None:
        try:
            return make_plan(self._inference, known, share)
        except Exception:  # noqa: BLE001 - it is met again, and told, on the long way
            return None


def read_all(cycles: Sequence[RepeatCycle], inference: InferHandler) -> None:
    """Put into each its tensors' bytes, or tell it what is wrong with its numbers."""
    for cycle in cycles:
        data = _read(cycle)
        if data is None:
            _read_slowly(cycle, inference)
        else:
            cycle.data = data


def _read(cycle: RepeatCycle) -> bytes | None:
    """The bytes of all tensors; None if anything is not as it should be."""
    packs, places, data = cycle.known.packs, cycle.places, cycle.data
    if len(packs) == 1:
        return read_numbers(packs[0], data, places[0])
    tensors = []
    for pack, place in zip(packs, places, strict=True):
        tensor = read_numbers(pack, data, place)
        if tensor is None:
            return None
        tensors.append(tensor)
    return b"".join(tensors)


def _read_slowly(cycle: RepeatCycle, inference: InferHandler) -> None:
    """As a request is read of which nothing is known: it says what is wrong."""
    known = cycle.known
    try:
        inputs = inference.decode(known.head, cycle.data[-cycle.held :]).inputs
    except Exception as error:  # noqa: BLE001 - it is logged and answered
        cycle.set_exception(error)
        return
    cycle.data = b"".join(
        [encode_raw(each.spec.dtype, inputs[name]) for name, each in known.form.declared.items()]
    )
