"""gRPC senders: serialized messages over a few channels of the client library."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import grpc

from mlctl.loadtest.figures import OK
from mlctl.loadtest.loops import GRACE_SECONDS, Done
from mlctl.services.protocol.messages import SERVICE

_CLIENTS_PER_CHANNEL = 16


class GrpcTarget:
    """A server's gRPC address and serialized ModelInferRequests, which are sent in turn.

    Sixteen clients share a connection, as the clients of one program would.
    """

    def __init__(
        self,
        address: str,
        requests: Sequence[bytes],
        metadata: Mapping[str, str],
        *,
        tls: bool = False,
    ) -> None:
        self._address = address
        self._requests = requests
        self._metadata = metadata
        self._tls = tls
        self._channels: list[Any] = []
        self._clients = 0

    async def connect(self) -> GrpcSender:
        """Return a new sender."""
        if self._clients % _CLIENTS_PER_CHANNEL == 0:
            self._channels.append(open_channel(self._address, tls=self._tls))
        self._clients += 1
        return GrpcSender(self._channels[-1], self._requests, self._metadata)

    async def close(self) -> None:
        """Close the connections."""
        for channel in self._channels:
            await channel.close()


class GrpcSender:
    """One client."""

    def __init__(
        self, channel: Any, requests: Sequence[bytes], metadata: Mapping[str, str]
    ) -> None:
        self._call = channel.unary_unary(f"/{SERVICE}/ModelInfer")
        self._requests = itertools.cycle(requests)
        self._metadata = tuple(metadata.items())
        self._task: asyncio.Task[None] | None = None

    def send(self, done: Done) -> None:
        """Send the next request; `done` is called once, from the event loop."""
        self._task = asyncio.get_running_loop().create_task(self._send(done))

    def close(self) -> None:
        """Cancel an open request."""
        if self._task is not None:
            self._task.cancel()

    async def _send(self, done: Done) -> None:
        try:
            await self._call(next(self._requests), metadata=self._metadata, timeout=GRACE_SECONDS)
        except grpc.aio.AioRpcError as error:
            code = dict(error.trailing_metadata() or ()).get("mlctl-code")
            done(f"{error.code().name} {code!s}" if code else error.code().name, b"")
        else:
            done(OK, b"")


def open_channel(address: str, *, tls: bool) -> Any:
    """Return a channel with a connection of its own."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    if tls:
        credentials = grpc.ssl_channel_credentials()  # type: ignore[no-untyped-call]
        return grpc.aio.secure_channel(address, credentials, options=options)
    return grpc.aio.insecure_channel(address, options=options)
