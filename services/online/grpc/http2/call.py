"""One call: its messages in, its handler, and its answer with a status."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
from google.protobuf.message import DecodeError

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.online.batching.admission import Hold, Inflight, deadline_exceeded
from mlctl.services.online.grpc.http2.frames import Reason
from mlctl.services.online.grpc.http2.head import HEADERS, OK_TRAILERS, CallHead, make_trailers
from mlctl.services.online.grpc.http2.messages import Assembler, frame, unpack, unpack_apart
from mlctl.services.online.grpc.http2.outbox import SendQueue
from mlctl.services.online.grpc.status import Trailer, status_of, trailers
from mlctl.services.online.security.public import failed, is_public
from mlctl.services.protocol.wire import invalid

# Memory of a waiting call beside its headers: 2.5 to 7 KB, by its kind.
CALL_BYTES = 8 << 10
# Larger messages may take milliseconds to inflate.
_HEAVY_BYTES = 64 << 10
logger = logging.getLogger("mlctl.grpc")


class CallConnection(Protocol):
    """What a call needs of its connection."""

    outbox: SendQueue
    peer: str

    def consumed(self, stream: int, size: int) -> None:
        """Let the client send `size` more bytes on the stream."""

    def over(self, stream: int) -> None:
        """Forget the call of `stream`, which was answered or dropped."""


@dataclass(frozen=True, slots=True)
class MethodHandler:
    """The implementation of one method.

    `answer` takes the message (an iterator of messages if the client `streams`) and the call. It
    returns the response, yields several, or writes them to the call and returns None. An
    MlctlError that it raises becomes the call's status.
    """

    answer: Callable[[Any, GrpcCall], Any]
    serialize: Callable[[Any], bytes]
    deserialize: Callable[[bytes], Any] | None = None
    streams: bool = False


class GrpcCall:
    """One stream of one connection, which may have ended with its headers.

    A message has at most `limit` bytes and must arrive within `seconds`; the client must read a
    response within the same time. `on_reject` is called for calls that are rejected before the
    handler runs. `client` is the name of the caller's token. Messages are charged to
    `inflight` until they are read, the call itself to `room` until it is answered.
    """

    __slots__ = (
        "_arrived", "_assembler", "_end", "_ended", "_handler", "_hold", "_inflight",
        "_late", "_limit", "_link", "_on_reject", "_seconds", "_started", "_task", "_timer",
        "_untaken", "client", "done", "head", "stream",
    )  # fmt: skip

    def __init__(
        self,
        link: CallConnection,
        stream: int,
        head: CallHead,
        *,
        limit: int,
        inflight: Inflight,
        room: Inflight,
        seconds: float,
        ended: bool,
        on_reject: Callable[[MlctlError, CallHead, str], None],
    ) -> None:
        self.stream = stream
        self.client = ""
        self.done = False
        self._link = link
        self.head = head
        self._limit = limit
        self._seconds = seconds
        self._on_reject = on_reject
        self._hold = Hold(room)
        self._inflight = inflight
        self._assembler = Assembler(limit, Hold(inflight))
        self._handler: MethodHandler | None = None
        self._untaken = 0
        self._ended = ended  # the client sends no more
        self._started = False
        self._arrived: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._late: asyncio.TimerHandle | None = None
        self._end: float | None = None

    def begin(self, handler: MethodHandler) -> None:
        """Wait for the message, or start to serve a stream of them.

        Raises BusyError, and INVALID_INPUT for a time to wait that is none.
        """
        loop = asyncio.get_running_loop()
        self._handler = handler
        timeout = self.head.timeout
        self._hold.grow(CALL_BYTES + self.head.size)
        if timeout is not None:
            self._end = loop.time() + timeout
        if handler.streams:
            self._arrived = asyncio.Event()
            self._arm(timeout)
            self._task = loop.create_task(self._run())
        else:
            self._arm(self._seconds if timeout is None else min(timeout, self._seconds))

    def feed(self, data: bytes, size: int, *, ended: bool) -> None:
        """Take bytes of messages, which with their framing use `size` bytes of the window."""
        self._ended = ended
        if self.done:
            return
        try:
            self._assembler.feed(data)
        except MlctlError as error:
            self._reject_early(error)
            return
        self._untaken += size
        if self._arrived is not None and self._assembler.messages:
            self._arrived.set()
        else:
            self._take()
        self._watch()

    def end(self) -> None:
        """The client sends no more."""
        self._ended = True
        if self.done:
            return
        if not self._assembler.is_whole:
            self._reject_early(invalid("the call ends within a message"))
        elif self._arrived is not None:
            self._arrived.set()
        elif len(self._assembler.messages) != 1:
            self._reject_early(invalid("the call has not exactly one message"))
        else:
            self._disarm()
            if self._end is not None:
                self._arm(self._end - asyncio.get_running_loop().time())
            self._task = asyncio.get_running_loop().create_task(self._run())

    def leave(self) -> None:
        """Drop the call: the client disconnected or cancelled it."""
        self.done = True
        self._let_go()
        if self._task is not None:
            self._task.cancel()

    def stop(self, reason: MlctlError) -> None:
        """End the call with the status of `reason`, at whatever stage it is."""
        if self._task is None:
            self._reject_early(reason)
        else:
            self.reject(reason)
            self._task.cancel()

    def reject(self, error: MlctlError) -> None:
        """Answer with the status of `error`."""
        self._finish(*status_of(error), trailers(error))

    def reject_with(self, code: grpc.StatusCode, details: str) -> None:
        """Answer with a status of the protocol that is not in the error table."""
        self._finish(code.value[0], details, ())

    def reject_http(self, status: int) -> None:
        """Answer a request that is not gRPC."""
        self._let_go()
        self.done = True
        fields = ((b":status", b"%d" % status),)
        outbox, reset_unfinished = self._link.outbox, not self._ended
        outbox.end(self.stream, fields, reset_unfinished=reset_unfinished, seconds=self._seconds)

    @property
    def peer(self) -> str:
        """The client's address."""
        return self._link.peer

    def time_remaining(self) -> float | None:
        """The seconds until the caller's deadline, if it has one."""
        return None if self._end is None else self._end - asyncio.get_running_loop().time()

    async def write(self, message: Any) -> None:
        """Send one message of several, when the client takes it."""
        assert self._handler is not None
        if not self._send(frame(self._handler.serialize(message))):
            late = asyncio.get_running_loop().call_later(self._seconds, self._give_up)
            try:
                await self._link.outbox.drained(self.stream)
            finally:
                late.cancel()

    def _give_up(self) -> None:
        """Reset the stream of a client that does not read its response."""
        self.leave()
        self._link.outbox.reset(self.stream, Reason.CANCEL)
        self._link.over(self.stream)

    def _watch(self) -> None:
        """Limit the time of each message of a stream, from when only the client is awaited."""
        assembler = self._assembler
        begun = self._arrived is not None and not assembler.is_whole and not assembler.messages
        if begun and self._late is None:
            loop = asyncio.get_running_loop()
            self._late = loop.call_later(self._seconds, self._reject_early, deadline_exceeded())
        elif not begun and self._late is not None:
            self._late.cancel()
            self._late = None

    def _reject_early(self, error: MlctlError) -> None:
        """Reject what arrived before the handler saw it, and end a handler that waits for more."""
        if self.done:
            return
        self._on_reject(error, self.head, self.client)
        self.reject(error)
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            self._succeed(await self._answer())
        except asyncio.CancelledError:
            return  # the cancelling side has sent the status
        except Exception as error:
            if is_public(error):
                self.reject(error)
            else:
                logger.exception("a call of %s failed", self.head.path)
                self.reject(failed())

    async def _answer(self) -> bytes | None:
        """The handler's single message, or None after it wrote any number of them."""
        handler = self._handler
        assert handler is not None
        answer = handler.answer(self._messages() if handler.streams else await self._next(), self)
        if not inspect.isasyncgen(answer):
            message = await answer
            return None if message is None else frame(handler.serialize(message))
        async with aclosing(answer) as messages:
            async for message in messages:
                await self.write(message)
        return None

    async def _messages(self) -> AsyncIterator[Any]:
        arrived = self._arrived
        assert arrived is not None
        while True:
            while self._assembler.messages:
                yield await self._next()
            if self._ended:
                return
            arrived.clear()
            await arrived.wait()

    async def _next(self) -> Any:
        packed = self._assembler.take()  # the handler counts it from here on
        if not self._assembler.messages:
            self._take()
            self._watch()
        coding = self.head.encoding
        if packed.compressed and len(packed.data) > _HEAVY_BYTES:
            message = await unpack_apart(packed, coding, self._limit, self._inflight)
        else:
            message = unpack(packed, coding, self._limit)
        assert self._handler is not None
        deserialize = self._handler.deserialize
        if deserialize is None:
            return message
        try:
            return deserialize(message)
        except DecodeError:
            raise invalid("the message is not the method's request") from None

    def _send(self, data: bytes) -> bool:
        if self.done:
            raise asyncio.CancelledError
        outbox = self._link.outbox
        if not self._started:
            self._started = True
            outbox.start(self.stream, HEADERS)
        return outbox.message(self.stream, data)

    def _succeed(self, response: bytes | None) -> None:
        if self.done:
            return
        if response is not None:
            self._send(response)
        self._close(OK_TRAILERS)

    def _finish(self, number: int, details: str, metadata: tuple[Trailer, ...]) -> None:
        if not self.done:
            self._close(make_trailers(number, details, metadata))

    def _close(self, ending: Any) -> None:
        self.done = True
        self._let_go()
        # Without an answer before them the trailers are its headers, too.
        fields = ending if self._started else HEADERS + ending
        outbox = self._link.outbox
        reset_unfinished = not self._ended
        outbox.end(self.stream, fields, reset_unfinished=reset_unfinished, seconds=self._seconds)
        self._link.over(self.stream)

    def _take(self) -> None:
        if self._untaken and not self._ended and not self.done:
            self._link.consumed(self.stream, self._untaken)
            self._untaken = 0

    def _let_go(self) -> None:
        self._disarm()
        if self._late is not None:
            self._late.cancel()
        self._assembler.drop()
        self._hold.release()

    def _arm(self, seconds: float | None) -> None:
        if seconds is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, seconds), self.stop, deadline_exceeded())

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def stopping() -> MlctlError:
    """Return the error of a call that outlasts its server."""
    return MlctlError(ErrorCode.UNAVAILABLE, "the server stops")
