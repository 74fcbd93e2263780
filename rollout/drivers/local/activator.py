"""What stands in for a sleeping deployment, a process of its own.

The proxy sends to it while no replica serves. It wakes the deployment, holds the connection
until a replica is ready, and then passes bytes on in both directions without reading them; so
HTTP/1.1 and HTTP/2 (gRPC) go through alike. The proxy's health check is answered here and
does not wake it. Beyond a number of held connections, or a time, the answer is 503.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial

import httpx

from mlctl.core.errors import MlctlError
from mlctl.rollout.domain.spec import DeploymentSettings, Endpoint
from mlctl.rollout.drivers.local.fleet import replicas_of
from mlctl.rollout.journal import paths
from mlctl.rollout.journal.journal import Journal

MAX_CONNECTIONS = 1024
_POLL_SECONDS = 0.05
_READY_TIMEOUT = 1.0
_FIRST_SECONDS = 10.0
_CHUNK = 1 << 16
_HEALTH = re.compile(rb"(GET|HEAD) /v2/health/ready[ ?]")
_HEALTHY = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_BODY = b'{"error": "the model is being started and did not become ready in time"}'
_UNAVAILABLE = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 5\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
)


def activator_command(name: str, endpoint: Endpoint) -> list[str]:
    """How the activator of the deployment `name` is run, listening at `endpoint`."""
    ports = (str(endpoint.http), str(endpoint.grpc))
    return [sys.executable, "-P", "-m", "mlctl.rollout.drivers.local.activator", name, *ports]


@dataclass(frozen=True, slots=True)
class HoldLimits:
    """The most connections held at once, and the seconds that each may wait."""

    connections: int = MAX_CONNECTIONS
    seconds: float = 120.0


class Activator:
    """Holds connections until `find` names a replica that is ready. `wake` requests one."""

    def __init__(
        self,
        wake: Callable[[], None],
        find: Callable[[], Awaitable[Endpoint | None]],
        limits: HoldLimits,
    ) -> None:
        self._wake = wake
        self._find = find
        self._limits = limits
        self._waiting = 0
        self._search: asyncio.Task[Endpoint] | None = None

    async def serve(self, endpoint: Endpoint, stop: asyncio.Event) -> None:
        """Listen on both ports of `endpoint` until `stop` is set."""
        http = await asyncio.start_server(self._http, "127.0.0.1", endpoint.http)
        grpc = await asyncio.start_server(self._grpc, "127.0.0.1", endpoint.grpc)
        await stop.wait()
        http.close()
        grpc.close()

    async def _http(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with _closing(writer):
            async with asyncio.timeout(_FIRST_SECONDS):
                line = await reader.readuntil(b"\n")
            if _HEALTH.match(line):
                writer.write(_HEALTHY)
                await writer.drain()
            elif not await self._pass_on(reader, writer, line, lambda found: found.http):
                writer.write(_UNAVAILABLE)
                await writer.drain()

    async def _grpc(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with _closing(writer):
            async with asyncio.timeout(_FIRST_SECONDS):
                begun = await reader.read(_CHUNK)
            # Closed without an answer, it is UNAVAILABLE to the proxy's client.
            if begun:
                await self._pass_on(reader, writer, begun, lambda found: found.grpc)

    async def _pass_on(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        begun: bytes,
        port: Callable[[Endpoint], int],
    ) -> bool:
        """Hold, then connect both ends until one closes; False if no replica came in time."""
        if self._waiting >= self._limits.connections:
            return False
        self._waiting += 1
        try:
            async with asyncio.timeout(self._limits.seconds):
                upstream, downstream = await self._reach(port)
        except TimeoutError:
            return False
        finally:
            self._waiting -= 1
            if self._waiting == 0 and self._search is not None:
                self._search.cancel()  # no connection waits any more
        with _closing(downstream):
            downstream.write(begun)
            requests = asyncio.create_task(_pump(reader, downstream))
            try:
                await _pump(upstream, writer)
            finally:  # the answers have ended
                requests.cancel()
                await asyncio.wait([requests])
        return True

    async def _reach(
        self, port: Callable[[Endpoint], int]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to a ready replica. All waiting connections share one search."""
        while True:
            if self._search is None or self._search.done():
                self._search = asyncio.create_task(self._search_replica())
            found = await asyncio.shield(self._search)
            with contextlib.suppress(ConnectionError):  # it has just died: search again
                return await asyncio.open_connection("127.0.0.1", port(found))
            await asyncio.sleep(_POLL_SECONDS)

    async def _search_replica(self) -> Endpoint:
        while True:
            self._wake()
            found = await self._find()
            if found is not None:
                return found
            await asyncio.sleep(_POLL_SECONDS)


async def find_ready(journal: Journal, name: str, client: httpx.AsyncClient) -> Endpoint | None:
    """A live replica that says that it is ready."""
    slot = journal.deployment(name).slot
    for served in replicas_of(journal, name, slot).values():
        url = f"http://127.0.0.1:{served.endpoint.http}/v2/health/ready"
        with contextlib.suppress(httpx.TransportError):
            if (await client.get(url)).status_code == httpx.codes.OK:
                return served.endpoint
    return None


def wake(journal: Journal, name: str) -> None:
    """Request one replica if the deployment is scaled to zero."""
    if journal.deployment(name).settings.replicas == 0:
        journal.resize(name, awake, "a request came")


def awake(settings: DeploymentSettings) -> DeploymentSettings:
    """`settings` with a replica at least."""
    return replace(settings, replicas=max(1, settings.replicas))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on until the end, and the end too."""
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


class _closing(contextlib.AbstractContextManager[None]):  # noqa: N801 - used as a statement
    """Close the writer at the end; a peer that left or said nothing is no fault of ours."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        self._writer.close()
        left = (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)
        return kind is not None and issubclass(kind, left)


async def run(name: str, endpoint: Endpoint) -> None:
    """Stand in for `name` until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    client = httpx.AsyncClient(timeout=_READY_TIMEOUT, trust_env=False)
    with Journal(paths.journal()) as journal:
        limits = HoldLimits(seconds=journal.deployment(name).settings.ready_seconds)
        async with client:
            find = partial(find_ready, journal, name, client)
            await Activator(partial(wake, journal, name), find, limits).serve(endpoint, stop)


if __name__ == "__main__":
    try:
        asyncio.run(run(sys.argv[1], Endpoint(int(sys.argv[2]), int(sys.argv[3]))))
    except MlctlError as error:
        sys.exit(error.message)
