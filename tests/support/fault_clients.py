"""Clients of the text model while something fails: steady, slow and disappearing ones, a burst."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self

import grpc
import httpx

from mlctl.services.protocol.messages import SERVICE, methods
from tests.support.serving import Server
from tests.support.wait import PATIENCE_SECONDS, wait_until

MODEL = "text"
PATH = f"/v2/models/{MODEL}/infer"
INFER = methods()["ModelInfer"]
TEXT, TOTAL = "one two", 1.5
# The output `total` of each text; a word outside the vocabulary counts as the fourth.
TOTALS = {"one": 0.5, "two": 1.0, "three": 1.5, "slow": 2.0, TEXT: TOTAL}


def http_request(*texts: str) -> dict[str, Any]:
    """Return the arguments of `httpx.post` for a request with one row per text."""
    tensor = {"name": "text", "datatype": "BYTES", "shape": [len(texts)], "data": texts}
    return {"content": json.dumps({"inputs": [tensor]})}


def send_http(client: httpx.Client, server: Server, text: str) -> httpx.Response:
    return client.post(f"{server.url}{PATH}", **http_request(text), timeout=PATIENCE_SECONDS)


def totals(response: httpx.Response) -> list[float]:
    """Return the output `total` of a response."""
    (data,) = [each["data"] for each in response.json()["outputs"] if each["name"] == "total"]
    return list(data)


def is_answer(response: httpx.Response, text: str) -> bool:
    """Return whether this is the right response to a request for `text`."""
    return response.status_code == 200 and totals(response) == [TOTALS[text]]


def answered_by(response: httpx.Response) -> str:
    """Return the name of the worker that answered."""
    return str(response.headers["x-request-id"]).partition("-")[0]


def open_channel(server: Server) -> Any:
    """Open a gRPC connection of its own: channels to one address share one by default."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    return grpc.insecure_channel(  # type: ignore[no-untyped-call]
        f"127.0.0.1:{server.grpc_port}", options
    )


def send_grpc(channel: Any, text: str) -> Any:
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


class Load:
    """Clients, four over HTTP and two over gRPC, for the time of a `with` block.

    Each sends its next request when the last was answered, and at most `RATE` a second: without a
    limit they take both cores from the workers that start meanwhile.
    """

    RATE = 100.0
    clients = 6

    def __init__(self, server: Server) -> None:
        self.answers = 0
        self.failures: list[str] = []
        self._server = server
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(self.clients)

    def __enter__(self) -> Self:
        loops = [self._http_client] * 4 + [self._grpc_client] * 2
        self._running = [self._pool.submit(loop) for loop in loops]
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self._stop.set()
        self._pool.shutdown()
        for client in self._running:
            client.result()

    def wait_for_answers(self, count: int) -> None:
        enough = self.answers + count
        wait_until(lambda: self.answers >= enough, what=f"{count} more answers")

    def _http_client(self) -> None:
        with httpx.Client() as client:
            while not self._stop.wait(1 / self.RATE):
                try:
                    response = send_http(client, self._server, TEXT)
                except httpx.TransportError as error:
                    self.failures.append(f"http {type(error).__name__}")
                    continue
                if is_answer(response, TEXT):
                    self.answers += 1
                else:
                    self.failures.append(f"http {response.status_code}: {response.text}")

    def _grpc_client(self) -> None:
        with open_channel(self._server) as channel:
            while not self._stop.wait(1 / self.RATE):
                try:
                    send_grpc(channel, TEXT)
                    self.answers += 1
                except grpc.RpcError as error:
                    self.failures.append(f"grpc {error.code().name}")  # type: ignore[attr-defined]


class RawClient:
    """A connection that sends a request in two halves; closes at the end of a `with` block."""

    def __init__(self, server: Server, text: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", server.port), PATIENCE_SECONDS)
        self._total = TOTALS[text]
        body = http_request(text)["content"].encode()
        head = f"POST {PATH} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n"
        self._halves = (f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:9], body[9:])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self._socket.close()

    def send_first_half(self) -> None:
        self._socket.sendall(self._halves[0])

    def send_second_half(self) -> None:
        self._socket.sendall(self._halves[1])

    def check_answer(self) -> None:
        """Read until the server closes the connection, and check the response."""
        response = b"".join(iter(lambda: self._socket.recv(65536), b""))
        assert response.startswith(b"HTTP/1.1 200"), response
        assert f'"data":[{self._total}]'.encode() in response, response


@dataclass(frozen=True, slots=True)
class Burst:
    """Many requests at the same time: the rejections, the failures, and the right answers."""

    rejections: Sequence[httpx.Response]
    failures: Sequence[str]
    answers: int


def burst(server: Server, requests: int, rows: int) -> Burst:
    """Send all requests at once, each over its own connection; repeat the rejected ones."""
    rejections: list[httpx.Response] = []
    failures: list[str] = []

    async def send(client: httpx.AsyncClient, texts: list[str]) -> int:
        while True:
            try:
                response = await client.post(PATH, **http_request(*texts))
            except httpx.TransportError as error:
                failures.append(f"{type(error).__name__}: {error}")
                return 0
            if response.status_code == 503 and "retry-after" in response.headers:
                rejections.append(response)
                await asyncio.sleep(float(response.headers["retry-after"]))
            elif response.status_code == 200 and totals(response) == [TOTALS[t] for t in texts]:
                return 1
            else:
                failures.append(f"{response.status_code}: {response.text}")
                return 0

    async def send_all() -> int:
        limits = httpx.Limits(max_connections=None)
        options: dict[str, Any] = {"base_url": server.url, "timeout": PATIENCE_SECONDS}
        async with httpx.AsyncClient(limits=limits, **options) as client:
            # Neighbours have different rows, so that an answer to another request is detected.
            words = ["one", "two", "three"]
            texts = [[words[(n + row) % 3] for row in range(rows)] for n in range(requests)]
            return sum(await asyncio.gather(*(send(client, each) for each in texts)))

    answers = asyncio.run(send_all())
    return Burst(rejections, failures, answers)
