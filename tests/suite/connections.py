"""Fail the test that leaves a connection of asyncio open: a pytest plugin.

A connection that is still open when its event loop closes is never closed by asyncio. Its
`ResourceWarning` comes with the garbage collection, in whichever test that happens to be. This
plugin closes the connection and fails the test that left it. uvloop warns in time by itself.
"""

from __future__ import annotations

import socket
from asyncio import selector_events
from collections.abc import Generator
from typing import Any

import pytest

_left_open: list[str] = []
_Loop: Any = selector_events.BaseSelectorEventLoop
_close = _Loop.close
_make_transport = _Loop._make_socket_transport


def _recorded_close(loop: Any) -> None:
    if not loop.is_closed():
        for transport in list(loop._transports.values()):
            if transport._sock is not None:
                _left_open.append(f"{transport!r} of {transport._sock!r}")
                transport._sock.close()
                transport._sock, transport._closing = None, True
    _close(loop)


def _transport_of_a_serving_server(
    loop: Any, sock: socket.socket, protocol: Any, waiter: Any = None, **options: Any
) -> Any:
    """Close a connection that was accepted in the last tick before its server closed.

    CPython 3.11 leaves it open, because the transport fails with an AssertionError
    (github.com/python/cpython/issues/109564).
    """
    server = options.get("server")
    if server is not None and not server.sockets:
        sock.close()
        raise ConnectionAbortedError("the server has closed")
    return _make_transport(loop, sock, protocol, waiter, **options)


_Loop.close = _recorded_close
_Loop._make_socket_transport = _transport_of_a_serving_server


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Generator[None, object, object]:
    """Check when the test's fixtures have ended; several loops may have been closed meanwhile."""
    result = yield
    connections = _left_open.copy()
    _left_open.clear()
    if connections:
        found = "\n".join(connections)
        pytest.fail(f"connections open as their event loop closed:\n{found}", pytrace=False)
    return result
