"""Known infer calls, a turn of the event loop and a batch at a time: queued, answered, counted.

What one call costs is in the loops here; all else is done once for many. The answers are, byte
for byte, those of the handler that other calls have.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable
from time import perf_counter
from typing import Any, Protocol

from bundle.errors import MlctlError
from services.online.batching.admission import QueueFullError
from services.online.batching.desks import Told
from services.online.batching.joining import Arrays, Share, cut
from services.online.batching.rawrows import Form
from services.online.grpc.codec import GrpcCodec
from services.online.grpc.http2.head import HEADERS, CallHead, make_trailers
from services.online.grpc.http2.hpack import encode
from services.online.grpc.http2.ids import id_in
from services.online.grpc.http2.known import KnownCall, KnownCalls, render, with_id
from services.online.grpc.http2.messages import PREFIX_BYTES, frame
from services.online.grpc.http2.outbox import Outbox
from services.online.grpc.status import status_of, trailers
from services.online.http.connection.repeated import Turn
from services.online.models.served_model import ServedModel
from services.online.observability.calls import GRPC
from services.online.security.public import failed, is_public
from services.protocol.messages import SERVICE
from services.protocol.priority import Priority
from services.protocol.wire import InferRequest, encode_raw

_INFER = f"/{SERVICE}/ModelInfer"
logger = logging.getLogger("mlctl.grpc")

# The bytes of each output of a whole batch, how many a row has, and those before them.
_Plan = list[tuple[bytes, bytes, int]]


class DeskConnection(Protocol):
    """What a desk needs of a connection; `known` is what its last call was."""

    outbox: Outbox
    known: KnownCall | None

    def begin(self, call: InferCall) -> None:
        """The call is open."""

    def turn_away(self, stream: int, block: bytes) -> None:
        """Answer a call, which may be open, with a block of trailers alone."""

    def over(self, call: InferCall) -> None:
        """The call was answered."""

    def flush(self) -> None:
        """Send what there is."""


class InferCall:
    """A caller of the desk: one known call of one connection.

    Its message is `data` but for `id_field`, which counts as well until it is answered.
    """

    __slots__ = (
        "_over", "data", "desk", "form", "id_field", "key", "known", "link", "number", "priority",
        "rows", "stream", "timeout", "turn",
    )  # fmt: skip
    form: Form
    data: bytes
    rows: int
    key: Hashable
    timeout: float
    priority: Priority

    def __init__(
        self,
        desk: InferDesk,
        link: DeskConnection,
        stream: int,
        known: KnownCall,
        data: bytes,
        id_field: bytes,
        timeout: float,
    ) -> None:
        self.desk = desk
        self.link = link
        self.stream = stream
        self.known = known
        self.data = data[len(id_field) :] if id_field else data
        self.id_field = id_field
        self.form = known.form
        self.rows = known.rows
        self.key = known.key
        self.priority = known.priority
        self.timeout = timeout
        self.number = -1
        self._over = False
        self.turn = desk.arrive(self)

    def done(self) -> bool:
        """Whether nobody waits any more."""
        return self._over

    def send(self, message: bytes) -> None:
        """Send the whole answer, when its connection is flushed."""
        self.end()
        self.link.outbox.answer(self.stream, message, self.desk.seconds)
        self.link.over(self)

    def set_exception(self, error: Exception, /) -> None:
        """Answer that there is no answer."""
        self.desk.failed(error)
        if not is_public(error):
            logger.error("a call of %s failed", _INFER, exc_info=error)
            error = failed()
        self._refuse(error)

    def leave(self) -> None:
        """The client is gone: withdraw what was asked."""
        if not self._over:
            self.end()
            self.desk.withdraw(self)

    def stop(self, reason: MlctlError) -> None:
        """End the call with the status of `reason`."""
        if not self._over:
            self.desk.withdraw(self)
            self._refuse(reason)

    def end(self) -> None:
        """Nobody waits any more."""
        self._over = True
        self.data = b""
        self.desk.let_go(self.known.size + len(self.id_field))

    def _refuse(self, error: MlctlError) -> None:
        self.end()
        self.link.turn_away(self.stream, self.desk.ending_of(error))


class InferDesk:
    """Speaks for the known calls of one model's connections; `response` is the answer's class."""

    def __init__(self, host: ServedModel, codec: GrpcCodec, response: type[Any]) -> None:
        self._host = host
        self._codec = codec
        self._response = response
        self._memory = KnownCalls(host)
        self._arrived: list[InferCall] = []
        self._turn = Turn()
        self._began = 0.0
        self._told: tuple[str, float] | None = None
        self._ending = b""
        self._full = False  # whether the queue was just now: only then is it asked first
        self._uncounted = 0  # of those turned away in this turn of the loop

    @property
    def seconds(self) -> float:
        """The longest that a call may take, and that its answer may wait to be taken."""
        return self._host.settings.deadline_ms / 1000

    def learn(self, message: bytes, parsed: Any, request: InferRequest) -> None:
        """See `KnownCalls.learn`."""
        self._memory.learn(message, parsed, request)

    def find(self, data: bytes) -> KnownCall | None:
        """See `KnownCalls.find`."""
        return self._memory.find(data)

    def take(self, link: DeskConnection, stream: int, head: CallHead, data: bytes) -> bool:
        """Whether the call is known and would be let in; else it has to go the long way.

        It came at once, with `data` in one frame.
        """
        if head.path != _INFER or not head.plain:
            return False
        known = link.known
        id_field = None if known is None else known.id_of(data)
        if known is None or id_field is None:
            known = link.known = self._memory.find(data)
            id_field = None if known is None else known.id_of(data)
            if known is None or id_field is None:
                return False
        host, size = self._host, len(data)
        if host.observer is not None or size - PREFIX_BYTES > host.settings.max_body_bytes:
            return False
        if not host.access.allows(head.authorization):
            return False
        if self._full and self._turn_away(link, stream, known):
            return True
        if not host.inflight.take(size):
            return False
        timeout = self.seconds
        for limit in (head.timeout, known.timeout):
            if limit is not None and limit < timeout:
                timeout = limit
        link.begin(InferCall(self, link, stream, known, data, id_field, timeout))
        return True

    def arrive(self, call: InferCall) -> Turn:
        """A call came; it is queued with all others of this turn, which is returned."""
        if not self._arrived:
            self._turn, self._began = Turn(), perf_counter()
            asyncio.get_running_loop().call_soon(self._submit)
        self._arrived.append(call)
        return self._turn

    def withdraw(self, call: InferCall) -> None:
        """Nobody waits for the call any more, which was not answered."""
        self._host.withdraw(call)
        self._host.count(GRPC, asyncio.CancelledError())

    def failed(self, error: Exception) -> None:
        """Count a call without an answer."""
        self._full = self._full or isinstance(error, QueueFullError)
        self._host.count(GRPC, error)

    def ending_of(self, error: MlctlError) -> bytes:
        """The block of the headers of a call that ends with the status of `error`.

        Of a full queue many are told at once, and the same: theirs are not made again.
        """
        told = (error.message, error.retry_after) if isinstance(error, QueueFullError) else None
        if told is None or told != self._told:
            ending = HEADERS + make_trailers(*status_of(error), trailers(error))
            self._told, self._ending = told, encode(ending)
        return self._ending

    def let_go(self, size: int) -> None:
        """A message that was taken in is held no more."""
        self._host.inflight.used -= size

    def _turn_away(self, link: DeskConnection, stream: int, known: KnownCall) -> bool:
        """Whether a call is refused at once, before it is queued."""
        error = self._host.refusal(known.rows, known.priority)
        if error is None:
            self._full = False
            return False
        if not self._uncounted:
            asyncio.get_running_loop().call_soon(self._count_refused, error)
        self._uncounted += 1
        link.turn_away(stream, self.ending_of(error))
        return True

    def _count_refused(self, error: QueueFullError) -> None:
        self._host.count(GRPC, error, self._uncounted)
        self._uncounted = 0

    def _submit(self) -> None:
        arrived, self._arrived = self._arrived, []
        waiting = [call for call in arrived if not call.done()]
        self._turn.parse = (perf_counter() - self._began) / len(arrived)
        try:
            self._host.submit_all(waiting, self)
        except Exception as error:  # noqa: BLE001 - it is logged and answered
            for call in waiting:
                if not call.done():
                    self._host.withdraw(call)
                    call.set_exception(error)

    def answer(self, told: list[Told], seconds: float) -> None:
        """See `services.online.batching.desks.Desk`."""
        before = perf_counter()
        outputs: Arrays | None = None
        plans = dict[KnownCall, _Plan | None]()
        ready: list[tuple[InferCall, bytes]] = []
        turns: dict[Turn, tuple[int, float]] = {}
        call: InferCall
        for call, share, wait in told:
            if share[0] is not outputs:
                outputs, plans = share[0], {}
            known = call.known
            if known not in plans:
                plans[known] = self._try_plan(known, share)
            plan = plans[known]
            if plan is None:
                self._answer_alone(call, share, wait, seconds)
                continue
            ready.append((call, _message(plan, share[1], call)))
            turns[call.turn] = (turns[call.turn][0] + 1 if call.turn in turns else 1, wait)
        if ready:
            serialize = (perf_counter() - before) / len(ready)
            for turn, (count, wait) in turns.items():
                self._count(count, turn, wait, seconds, serialize)
        links = dict[DeskConnection, None]()
        for call, content in ready:
            call.send(content)
            links[call.link] = None
        for link in links:
            link.flush()

    def _answer_alone(self, call: InferCall, share: Share, wait: float, seconds: float) -> None:
        """The long way."""
        before = perf_counter()
        try:
            request = call.known.request._replace(id=id_in(call.id_field))
            message = self._codec.encode(self._response, request, cut(share))
            content = frame(message.SerializeToString())
        except Exception as error:  # noqa: BLE001 - it is logged and answered
            call.set_exception(error)
        else:
            self._count(1, call.turn, wait, seconds, perf_counter() - before)
            call.send(content)
            call.link.flush()

    def _count(self, count: int, turn: Turn, wait: float, seconds: float, serialize: float) -> None:
        self._host.stages(turn.parse, wait, seconds, serialize, count)
        self._host.count(GRPC, None, count)

    def _try_plan(self, known: KnownCall, share: Share) -> _Plan | None:
        try:
            return self._plan(known, share)
        except Exception:  # noqa: BLE001 - it is met again, and told, on the long way
            return None

    def _plan(self, known: KnownCall, share: Share) -> _Plan:
        outputs = share[0]
        tails = tuple([outputs[name].shape[1:] for name in known.outputs])
        rendered = known.rendered
        if rendered is None or rendered.tails != tails:
            message = self._codec.encode(self._response, known.request, cut(share))
            rendered = known.rendered = render(message, tails)
        plan = []
        for start, (name, datatype) in zip(rendered.starts, known.outputs.items(), strict=True):
            content = encode_raw(datatype, outputs[name])
            plan.append((start, content, len(content) // outputs[name].shape[0]))
        return plan


def _message(plan: _Plan, first: int, call: InferCall) -> bytes:
    """The framed answer with the rows of the batch that are the call's."""
    parts, rows = list[bytes](), call.rows
    for start, content, size in plan:
        parts += (start, content[first * size : (first + rows) * size])
    answer, rendered = b"".join(parts), call.known.rendered
    if not call.id_field or rendered is None:
        return answer
    return with_id(answer, rendered.place, call.id_field)
