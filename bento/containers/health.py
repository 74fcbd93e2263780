"""The health check inside an image: exits with 0 if the server reports that it is ready.

A container that runs `batch` or `stream` has no server, and counts as healthy until it ends.

It runs on the standard library alone. With TLS it does not verify the certificate, because it calls
its own container. Where callers need a certificate it has none, so it only checks that the port is
open.
"""

from __future__ import annotations

import os
import socket
import ssl
import sys
import urllib.request
from pathlib import Path

_SECONDS = 4.0
_RUNNERS = {b"batch", b"stream"}
# The arguments of the container's first process.
_FIRST_PROCESS = Path("/proc/1/cmdline")


def main() -> int:
    """Return 0 if the server is ready or the container has none, else 1."""
    port = int(os.environ.get("BENTOML_PORT", "3000"))
    try:
        if _RUNNERS & set(_FIRST_PROCESS.read_bytes().split(b"\0")):
            return 0
        if os.environ.get("MLCTL_TLS_CLIENT_CA"):
            socket.create_connection(("127.0.0.1", port), _SECONDS).close()
            return 0
        scheme = "https" if os.environ.get("MLCTL_TLS_CERT") else "http"
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        with opener.open(f"{scheme}://127.0.0.1:{port}/readyz", timeout=_SECONDS) as answer:
            return 0 if answer.status == 200 else 1
    except OSError as error:
        print(f"not ready: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
