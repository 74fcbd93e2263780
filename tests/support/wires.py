"""Connections without sockets: what a server's protocol writes lies in a list."""

from __future__ import annotations

import asyncio
from typing import Any


class Wire(asyncio.Transport):
    """One connection. `sent` is what was written, `closed` whether the server has closed it.

    `protocol`, if there is one, learns of the end in the next tick, as a socket's does.
    """

    def __init__(
        self,
        peername: tuple[str, int] | None = ("127.0.0.1", 1),
        protocol: asyncio.Protocol | None = None,
    ) -> None:
        super().__init__({"peername": peername, "sockname": ("127.0.0.1", 2)})
        self.sent: list[bytes] = []
        self.closed = False
        self._protocol = protocol

    def write(self, data: Any) -> None:
        self.sent.append(data)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        if self._protocol is not None and not self.closed:
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)
        self.closed = True

    def abort(self) -> None:
        self.close()

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        """Whoever feeds the protocol goes on."""

    def resume_reading(self) -> None:
        """Nothing is ever paused."""
