"""The calls of one client: runs each, and prints what happened as lines of JSON.

Only the standard library: this runs in the environments of the clients.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Servers:
    """Addresses as HOST:PORT: `tiny` has FP32 x [-1, 4], `table` has two columns, `llm` text."""

    tiny: str
    tiny_grpc: str
    table: str
    table_grpc: str
    llm: str


class Calls:
    """The calls of the client `client`."""

    def __init__(self, client: str) -> None:
        self._client = client
        self._calls: list[tuple[str, bool, Callable[[Servers], Any]]] = []

    def __call__(
        self, name: str, *, works: bool = True
    ) -> Callable[[Callable[[Servers], Any]], Callable[[Servers], Any]]:
        """Add a call; one that does not work asserts the error that the user sees."""

        def add(call: Callable[[Servers], Any]) -> Callable[[Servers], Any]:
            self._calls.append((name, works, call))
            return call

        return add

    def run(self) -> None:
        """Run all calls."""
        servers = Servers(**json.loads(os.environ["MLCTL_CLIENTS"]))
        for name, works, call in self._calls:
            try:
                found = call(servers)
                if inspect.isawaitable(found):
                    asyncio.run(_finish(found))
                error = None
            except Exception as problem:  # noqa: BLE001 - it is reported
                error = f"{type(problem).__name__}: {problem}"[:500]
            line = {"client": self._client, "call": name, "works": works, "error": error}
            print(json.dumps(line), flush=True)


async def _finish(found: Any) -> None:
    async with asyncio.timeout(60):
        await found
