"""A real HTTP server that takes notices, or refuses them as told."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True, slots=True)
class Delivery:
    """One request: its headers in lower case, its body, and the status that was answered."""

    headers: Mapping[str, str]
    body: bytes
    status: int

    @property
    def document(self) -> Any:
        return json.loads(self.body)


@dataclass
class Receiver:
    """`answers` are the statuses of the next requests, with their headers; then all are taken."""

    url: str
    answers: deque[tuple[int, dict[str, str]]] = field(default_factory=deque)
    deliveries: list[Delivery] = field(default_factory=list)

    def refuse(self, *statuses: int, **headers: str) -> None:
        self.answers.extend(
            (status, {k.replace("_", "-"): v for k, v in headers.items()}) for status in statuses
        )

    @property
    def taken(self) -> list[str]:
        """The types of the notices that were taken, in their order."""
        return [each.document["type"] for each in self.deliveries if each.status == 204]


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver on a free port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            status, more = receiver.answers.popleft() if receiver.answers else (204, {})
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.deliveries.append(Delivery(headers, body, status))
            self.send_response(status)
            for name, value in more.items():
                self.send_header(name, value)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Tests have enough to print."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver = Receiver(f"http://127.0.0.1:{server.server_address[1]}/hook/secret-part")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
