"""Hostile connections from one process: each sends as fast as the server reads, for a while."""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Mapping, Sequence

from tests.hostile.attacks import Attack

# A connection that ended is replaced after so many seconds.
_PAUSE_SECONDS = 0.05
_CHUNK_BYTES = 256 << 10
# All connections together send no more.
_MAX_BYTES = 4 << 30


class _Sender:
    """One connection after the other with the bytes of `attack`."""

    def __init__(self, attack: Attack, port: int, selector: selectors.BaseSelector) -> None:
        self._attack = attack
        self._port = port
        self._selector = selector
        self._socket: socket.socket | None = None
        self._since = 0.0
        self.sent = 0

    def connect(self) -> None:
        """Connect, if there is no connection and the last one ended a while ago."""
        now = time.monotonic()
        if self._socket is not None or now - self._since < _PAUSE_SECONDS:
            return
        self._since = now
        with contextlib.suppress(OSError):
            self._socket = socket.create_connection(("127.0.0.1", self._port), 5)
            self._socket.setblocking(False)
            self._bytes, self._at = memoryview(self._attack.first or self._attack.repeated), 0
            events = selectors.EVENT_READ | selectors.EVENT_WRITE
            self._selector.register(self._socket, events, self)

    def step(self, events: int) -> None:
        """Read what is there, and send as much as the connection takes."""
        assert self._socket is not None
        try:
            if events & selectors.EVENT_READ and not self._socket.recv(_CHUNK_BYTES):
                self.close()
                return
            if events & selectors.EVENT_WRITE:
                self._send(self._socket)
        except BlockingIOError:
            pass
        except OSError:
            self.close()

    def _send(self, client: socket.socket) -> None:
        sent = client.send(self._bytes[self._at : self._at + _CHUNK_BYTES])
        self.sent += sent
        self._at += sent
        if self._at < len(self._bytes):
            return
        if self._attack.repeated:
            self._bytes, self._at = memoryview(self._attack.repeated), 0
        else:
            # Its answers are not awaited: all of its streams are used.
            self.close()

    def close(self) -> None:
        """End the connection."""
        if self._socket is not None:
            self._selector.unregister(self._socket)
            self._socket.close()
            self._socket = None
            self._since = time.monotonic()


def send_all(attacks: Sequence[Attack], ports: Mapping[str, int], seconds: float) -> None:
    """Keep one connection of each of `attacks` busy for `seconds`; `ports` are by transport."""
    with selectors.DefaultSelector() as selector:
        senders = [_Sender(attack, ports[attack.transport], selector) for attack in attacks]
        end = time.monotonic() + seconds
        while time.monotonic() < end and sum(each.sent for each in senders) < _MAX_BYTES:
            for sender in senders:
                sender.connect()
            for key, events in selector.select(0.02):
                key.data.step(events)
        for sender in senders:
            sender.close()
