"""uvicorn's own protocol, with limits on connections that BentoML does not give it."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from services.lean.upgrade import PlainParser


class StockProtocol(HttpToolsProtocol):
    """One connection. Requests are answered 503 while more than `max_connections` are open."""

    max_connections = 4096
    # How long a connection is kept between requests; None is what uvicorn was told.
    idle_seconds: int | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.parser = PlainParser(self)
        self.limit_concurrency = self.max_connections + 1  # uvicorn refuses from there on
        if self.idle_seconds is not None:
            self.timeout_keep_alive = self.idle_seconds
