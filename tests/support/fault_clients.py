"""Clients of the text model while something fails: steady ones, rude ones, and a burst of them."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
import httpx

from services.protocol.messages import SERVICE, methods
from tests.support.serving import Server
from tests.support.wait import PATIENCE_SECONDS

MODEL = "text"
PATH = f"/v2/models/{MODEL}/infer"
INFER = methods()["ModelInfer"]
TEXT, TOTAL = "one two", 1.5
# What the model makes of texts; a word that it does not know counts as a fourth.
WORTH = {"one": 0.5, "two": 1.0, "three": 1.5, "slow": 2.0, TEXT: TOTAL}


def http_request(*texts: str) -> dict[str, Any]:
    """What `httpx.post` takes to ask for the answers to `texts`."""
    tensor = {"name": "text", "datatype": "BYTES", "shape": [len(texts)], "data": texts}
    return {"content": json.dumps({"inputs": [tensor]})}


def ask_http(client: httpx.Client, server: Server, text: str) -> httpx.Response:
    return client.post(f"{server.url}{PATH}", **http_request(text), timeout=PATIENCE_SECONDS)


def totals(answer: httpx.Response) -> list[float]:
    """The numbers of a good answer."""
    (found,) = [each["data"] for each in answer.json()["outputs"] if each["name"] == "total"]
    return list(found)


def answered_by(answer: httpx.Response) -> str:
    """Which process answered."""
    return str(answer.headers["x-request-id"]).partition("-")[0]


def open_channel(server: Server) -> Any:
    """A connection of its own: channels to one address share one otherwise."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    return grpc.insecure_channel(  # type: ignore[no-untyped-call]
        f"127.0.0.1:{server.grpc_port}", options
    )


def ask_grpc(channel: Any, text: str) -> Any:
    request = INFER.request(model_name=MODEL)
    request.inputs.add(name="text", datatype="BYTES", shape=[1]).contents.bytes_contents.append(
        text.encode()
    )
    call = channel.unary_unary(
        f"/{SERVICE}/ModelInfer",
        request_serializer=INFER.request.SerializeToString,
        response_deserializer=INFER.response.FromString,
    )
    return call(request, timeout=PATIENCE_SECONDS, wait_for_ready=True)


@dataclass(slots=True)
class Seen:
    """What the clients of a load saw: which processes answered, and what failed how."""

    answered_by: set[str] = field(default_factory=set)
    answers: int = 0
    failures: list[str] = field(default_factory=list)


def http_client(server: Server, seen: Seen, stop: threading.Event) -> None:
    with httpx.Client() as client:
        while not stop.is_set():
            try:
                answer = ask_http(client, server, TEXT)
            except httpx.TransportError as error:
                seen.failures.append(f"http {type(error).__name__}")
                continue
            if answer.status_code == 200 and totals(answer) == [TOTAL]:
                seen.answers += 1
                seen.answered_by.add(answered_by(answer))
            else:
                seen.failures.append(f"http {answer.status_code}: {answer.text}")


def grpc_client(server: Server, seen: Seen, stop: threading.Event) -> None:
    with open_channel(server) as channel:
        while not stop.is_set():
            try:
                ask_grpc(channel, TEXT)
                seen.answers += 1
            except grpc.RpcError as error:
                seen.failures.append(f"grpc {error.code().name}")  # type: ignore[attr-defined]


class Load:
    """Clients that ask again as soon as they are answered, until `stop`."""

    def __init__(self, server: Server, http: int, over_grpc: int) -> None:
        clients: list[Callable[[Server, Seen, threading.Event], None]]
        clients = [http_client] * http
        clients += [grpc_client] * over_grpc
        self.seen = Seen()
        self.clients = len(clients)
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(len(clients))
        self._running: list[Future[None]] = [
            self._pool.submit(client, server, self.seen, self._stop) for client in clients
        ]

    def stop(self) -> None:
        """Let each have its last answer; raises what a client did not expect."""
        self._stop.set()
        self._pool.shutdown()
        for client in self._running:
            client.result(PATIENCE_SECONDS)


class RudeClient:
    """A connection that sends half of a request, or a whole one, and takes its time."""

    def __init__(self, server: Server) -> None:
        self._socket = socket.create_connection(("127.0.0.1", server.port), PATIENCE_SECONDS)
        self.expected = 0.0

    def send(self, text: str, part: slice) -> None:
        """Send a request for `text`, or one of the two parts that its body is cut into."""
        body = http_request(text)["content"].encode()
        self.expected = WORTH[text]
        head = f"POST {PATH} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n"
        pieces = [f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:9], body[9:]]
        self._socket.sendall(b"".join(pieces[part]))

    def answer(self) -> bytes:
        """All that comes until the server closes."""
        return b"".join(iter(lambda: self._socket.recv(65536), b""))

    def leave(self) -> None:
        self._socket.close()


@dataclass(frozen=True, slots=True)
class Burst:
    """What many simultaneous requests got: refusals, what should not be, and good answers."""

    requests: int
    refusals: Sequence[httpx.Response]
    wrong: Sequence[str]
    answers: int


def burst(server: Server, requests: int, rows: int) -> Burst:
    """Ask all at once, each over its own connection; whoever is refused asks again as told."""
    refusals: list[httpx.Response] = []
    wrong: list[str] = []

    async def ask(client: httpx.AsyncClient, texts: list[str], expected: list[float]) -> int:
        while True:
            try:
                answer = await client.post(PATH, **http_request(*texts))
            except httpx.TransportError as error:
                wrong.append(f"{type(error).__name__}: {error}")
                return 0
            if answer.status_code == 503 and "retry-after" in answer.headers:
                refusals.append(answer)
                await asyncio.sleep(float(answer.headers["retry-after"]))
                continue
            if answer.status_code != 200 or totals(answer) != expected:
                wrong.append(f"{answer.status_code}: {answer.text}")
                return 0
            return 1

    async def all_at_once() -> int:
        limits = httpx.Limits(max_connections=None)
        options: dict[str, Any] = {"base_url": server.url, "timeout": PATIENCE_SECONDS}
        async with httpx.AsyncClient(limits=limits, **options) as client:
            # Each has an answer of its own, so that one that went astray is seen.
            words = ["one", "two", "three"]
            asked = [[words[(n + row) % 3] for row in range(rows)] for n in range(requests)]
            expected = [[WORTH[text] for text in texts] for texts in asked]
            return sum(
                await asyncio.gather(*(ask(client, *e) for e in zip(asked, expected, strict=True)))
            )

    return Burst(requests, refusals, wrong, asyncio.run(all_at_once()))
