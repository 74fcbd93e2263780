"""Connections of a server without sockets: one that remembers, and one that shows what is right."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.config import Config
from uvicorn.server import ServerState

from services.online.http.app import V2App
from services.online.http.connection.protocol import InferProtocol, infer_protocol
from services.online.http.connection.repeated import RepeatCycle
from tests.services.online.http.connection.conftest import INFER, Bench
from tests.support.wires import Wire

NEVER = 1 << 30  # so many lessons: such a connection learns nothing


def post(body: bytes, headers: str = "") -> bytes:
    """A request with `body`; `headers` are whole lines."""
    length = f"Content-Length: {len(body)}\r\n"
    return f"POST {INFER} HTTP/1.1\r\nHost: test\r\n{length}{headers}\r\n".encode() + body


class Line:
    """A connection to a server of `bench`; one that does not learn shows what is right.

    Those of one `base` are of one server, which has them all in mind at once.
    """

    def __init__(
        self, bench: Bench, *, learns: bool = True, base: type[InferProtocol] | None = None
    ) -> None:
        app: Any = V2App(bench.host, bench.inference)
        base = base or infer_protocol(bench.inference)
        kind = base if learns else type("Forgetful", (base,), {"_lessons": NEVER})
        config = Config(app, http=kind, lifespan="off", log_config=None)
        config.load()
        state = ServerState()
        state.default_headers = [(b"date", b"Thu, 01 Jan 1970 00:00:00 GMT")]
        self.wire = Wire()
        self.protocol: InferProtocol = kind(
            config=config, server_state=state, app_state={}, _loop=bench.runner.get_loop()
        )
        self.protocol.connection_made(self.wire)

    def repeated(self) -> bool:
        """Whether the last request was taken as a known one."""
        return type(self.protocol.cycle) is RepeatCycle

    async def answer(self, count: int = 1) -> list[bytes]:
        """The next `count` writes, without what tells of the moment."""
        async with asyncio.timeout(20):
            while len(self.wire.sent) < count:  # noqa: ASYNC110 - turns of the loop, not time
                await asyncio.sleep(0)
        found, self.wire.sent = self.wire.sent, []
        return [steady(content) for content in found]

    def end(self) -> None:
        """The client leaves."""
        self.protocol.connection_lost(None)


def steady(content: bytes) -> bytes:
    """An answer without its timing and an id of the server's own making."""
    head, end, body = content.partition(b"\r\n\r\n")
    lines = []
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b": ")
        own = name == b"x-request-id" and not value.startswith(b"given")
        lines.append(name if own or name == b"server-timing" else line)
    return b"\r\n".join(lines) + end + body


class Played:
    """Four connections, each of which has asked twice for `first`, which is known then."""

    def __init__(self, bench: Bench, first: bytes, *, learns: bool) -> None:
        self.first = first
        base = infer_protocol(bench.inference)
        self.lines = {number: Line(bench, learns=learns, base=base) for number in range(4)}
        self.answers: list[list[bytes]] = [[] for _ in self.lines]

    async def play(self, turns: list[Any]) -> list[list[bytes]]:
        """What each connection is answered."""
        for turn in (*[[(self.first, 1, 1)] * 4] * 2, *turns):
            steps = dict(enumerate(turn))
            asked = [number for number in list(self.lines) if self.ask(number, steps[number])]
            for number in asked:
                self.answers[number] += await self.lines[number].answer()
                if self.lines[number].wire.closed:
                    self.lines.pop(number).end()
        for line in self.lines.values():
            line.end()
        return self.answers

    def ask(self, number: int, step: tuple[bytes, int, int] | None) -> bool:
        """Send what the step says; whether there will be an answer."""
        if step is None:
            return False
        content, pieces, leaves = step
        middle = len(content) // pieces
        for piece in (content[:middle], content[middle:]):
            if piece:
                self.lines[number].protocol.data_received(piece)
        if leaves == 0:
            self.lines.pop(number).end()
        return leaves != 0
