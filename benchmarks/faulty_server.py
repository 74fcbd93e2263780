"""A small server in place of a Bento, whose POST requests fail while a file exists.

`faulty_server.py NAME:DIGEST?fault=FILE --port PORT` serves the endpoints that a rollout
uses: health, readiness, the model's digest, and POST requests over HTTP/1.1. DIGEST is filled with
zeros.
"""

from __future__ import annotations

import argparse
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs


class FaultyHandler(BaseHTTPRequestHandler):
    """Respond to one connection's requests."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    digest = ""
    fault: Path | None = None

    def do_GET(self) -> None:
        """Report health, and the digest as the model's version."""
        self._respond(200, {"versions": [self.digest]})

    def do_POST(self) -> None:
        """Respond 500 while the fault file exists."""
        self.rfile.read(int(self.headers["Content-Length"]))
        failing = self.fault is not None and self.fault.exists()
        self._respond(500 if failing else 200, {"model_version": self.digest})

    def _respond(self, status: int, document: object) -> None:
        body = json.dumps(document).encode()
        head = f"HTTP/1.1 {status} \r\ncontent-length: {len(body)}\r\n\r\n"
        self.wfile.write(head.encode() + body)


class FaultyServer(ThreadingHTTPServer):
    """Keep connections waiting as a real server does; the default is five."""

    request_queue_size = 128


def main() -> None:
    """Serve until a signal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tag")
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    tag, _, query = options.tag.partition("?")
    FaultyHandler.digest = tag.partition(":")[2].ljust(64, "0")
    for path in parse_qs(query).get("fault", []):
        FaultyHandler.fault = Path(path)
    FaultyServer(("127.0.0.1", options.port), FaultyHandler).serve_forever()


if __name__ == "__main__":
    main()
