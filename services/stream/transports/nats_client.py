"""A connection to NATS on an event loop of its own, driven by the thread that calls.

Nothing happens between the calls: what the server sends waits in the socket. The connection is
not mended behind our back; after an error the next call makes a new one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import nats.errors
import nats.js.errors
from nats.aio.client import Client

from bundle.errors import ErrorCode, MlctlError
from services.stream.base import Place
from services.stream.transports.nats_secrets import secrets_of
from services.stream.transports.tls import unavailable

T = TypeVar("T")
_CONNECT_SECONDS = 5
_NO_CONSUMER = 10014
_FLAGS = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}
_OPTIONS = (
    *("create", "window_s", "ack_wait_s", "in_flight", "domain"),
    *("tls", "tls_ca", "tls_cert", "tls_key", "creds", "nkey_seed"),
)

# asyncio says so of each connection that the library took over to TLS, when it ends.
_NOISE = "returning true from eof_received() has no effect when using ssl"
logging.getLogger("asyncio").addFilter(lambda record: record.msg != _NOISE)


class Session:
    """The connection of one place. `number` grows with each new one."""

    def __init__(self, place: Place) -> None:
        unknown = sorted(set(place.options) - set(_OPTIONS))
        if unknown:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"a place in NATS has no option {unknown[0]!r}",
                f"Known are: {', '.join(_OPTIONS)}.",
            )
        if not place.topic or any(mark in place.topic for mark in " \t\r\n*>"):
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                "the place has no subject, or one with wildcards",
                "Name one subject after a #, as in nats://localhost:4222#orders.new.",
            )
        domain = place.options.get("domain", "")
        self.api = f"$JS.{domain}.API" if domain else "$JS.API"
        self.number = 0
        self._place = place
        self._domain = domain or None
        self._client: Client | None = None
        self._loop = asyncio.new_event_loop()
        self._lost: asyncio.Future[None] = self._loop.create_future()

    def run(self, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        """What `work` gives on a connection that is up; MlctlError for what may happen to it."""
        with told(self._place):
            try:
                return self._loop.run_until_complete(self._with(work))
            except (nats.errors.Error, OSError, TimeoutError) as error:
                if not isinstance(error, nats.js.errors.APIError):
                    self._drop()
                raise

    def jetstream(self, client: Client) -> Any:
        """The library's JetStream on `client`, in the domain of the place."""
        return client.jetstream(domain=self._domain)

    def close(self) -> None:
        """Ends the connection and the loop; the session is not used again."""
        self._drop()
        self._loop.close()

    async def _with(self, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        if self._client is None or not self._client.is_connected:
            await self._connect()
        assert self._client is not None
        # The library lets who waits for an answer wait on after the connection is lost.
        doing = asyncio.ensure_future(work(self._client))
        both: set[asyncio.Future[Any]] = {doing, self._lost}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
        doing.cancel()
        await asyncio.wait({doing})
        raise ConnectionError("the connection is lost")

    async def _connect(self) -> None:
        await self._leave()
        lost = self._lost = self._loop.create_future()

        async def closed() -> None:
            if not lost.done():
                lost.set_result(None)

        addresses = self._place.address.split(",")
        servers = [f"nats://{each.rpartition('@')[2]}" for each in addresses]
        secrets = secrets_of(self._place, tls=flag(self._place, "tls"))
        client = _Sealed(self._place) if "tls" in secrets else Client()
        try:
            await client.connect(
                servers,
                allow_reconnect=False,
                connect_timeout=_CONNECT_SECONDS,
                reconnect_time_wait=0,
                max_reconnect_attempts=1,
                name="mlctl",
                error_cb=_reported_elsewhere,
                disconnected_cb=closed,
                closed_cb=closed,
                **secrets,
            )
        except BaseException:
            _abandon(client)
            raise
        self._client = client
        self.number += 1

    def _drop(self) -> None:
        self._loop.run_until_complete(self._leave())

    async def _leave(self) -> None:
        """Close the connection, and end what the library still has running: the loop is ours."""
        client, self._client = self._client, None
        if client is not None:
            with suppress(nats.errors.Error, OSError, TimeoutError):
                await client.close()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)
        # A socket is closed in the loop's next round, which may be none any more.
        await asyncio.sleep(0)


class _Sealed(Client):
    """A client that tells who we are over TLS only: the library goes without where the server
    does, or whoever says so in its place."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self._place = place

    def _connect_command(self) -> bytes:
        if _writer(self).get_extra_info("ssl_object") is None:
            raise MlctlError(
                ErrorCode.BROKER_UNAVAILABLE,
                f"{self._place.shown()} does not speak TLS",
                "Give its server a certificate, or leave out tls=yes and the files of tls_.",
            )
        command: bytes = super()._connect_command()
        return command


@contextmanager
def told(place: Place) -> Iterator[None]:
    """The library's errors as ours: BROKER_UNAVAILABLE is all that another try may mend."""
    try:
        yield
    except nats.errors.MaxPayloadError as error:
        raise MlctlError(
            ErrorCode.PAYLOAD_TOO_LARGE,
            f"{place.shown()} does not take a message as large as this answer",
            "Raise max_payload of the server.",
        ) from error
    except nats.js.errors.NotFoundError as error:
        if error.err_code == _NO_CONSUMER:
            raise MlctlError(
                ErrorCode.NOT_FOUND,
                f"the consumer of {place.shown()} was deleted",
                "Start the stream again: it makes a new one.",
            ) from error
        raise MlctlError(
            ErrorCode.NOT_FOUND,
            f"no stream of JetStream takes {place.topic!r} at {place.shown()}",
            "Make one with `nats stream add`, or put ?create=yes into the place.",
        ) from error
    except nats.js.errors.BadRequestError as error:
        raise MlctlError(
            ErrorCode.INVALID_INPUT, f"{place.shown()}: {error.description}"
        ) from error
    except (nats.errors.Error, OSError, TimeoutError) as error:
        if isinstance(error, nats.errors.AuthorizationError) or "uthoriz" in str(error):
            raise MlctlError(
                ErrorCode.UNAUTHENTICATED,
                f"{place.shown()} does not accept the user or the token",
                "Give them in the place, or as MLCTL_NATS_USER, _PASSWORD, _TOKEN or _CREDS.",
            ) from error
        raise unavailable(place, error) from error


def flag(place: Place, name: str) -> bool:
    """The option `name` of `place`, which is yes or no."""
    text = place.options.get(name, "no").lower()
    if text not in _FLAGS:
        raise MlctlError(
            ErrorCode.INVALID_INPUT, f"{name}={text} is neither yes nor no", "Write ?create=yes."
        )
    return _FLAGS[text]


def _abandon(client: Client) -> None:
    """Close the socket of a client that did not connect.

    Its own close() would wait without end for a connection whose TLS failed.
    """
    writer = _writer(client)
    if writer is not None:
        writer.transport.abort()


def _writer(client: Client) -> Any:
    """Where it writes to the server; None before it has a socket."""
    return getattr(getattr(client, "_transport", None), "_io_writer", None)


async def _reported_elsewhere(_error: Exception) -> None:
    """The library's own log: whoever waits for something gets the error too."""
