"""The server's settings: environment variables with the prefix MLCTL_, checked at start."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field

from services.online.observability.settings import ObserveSettings
from services.online.security.settings import SecureSettings
from services.precomputed.settings import PrecomputedSettings
from services.runtime.settings import RuntimeSettings, read_environment

_Port = Annotated[int, Field(ge=1, le=65535)]


class ServerSettings(RuntimeSettings, ObserveSettings, SecureSettings, PrecomputedSettings):
    """How to serve one bundle; times are in the unit of their name.

    Attributes:
        grpc_port: unset means no gRPC.
        workers: processes that share the ports. The limits below are those of each.
        max_inflight_bytes: the bodies of all requests that are not answered yet.
        max_connections: of each protocol.
        keep_alive_s: an HTTP connection without a request for so long is closed; later than most
            clients and proxies close theirs, because the side that closes first loses no request.
        max_length: the largest size of a dynamic dimension other than the rows; unset, what the
            bundle says, else no limit.
        max_body_bytes: the largest body; unset, what the bundle says, else 64 MiB.
        max_rows: the largest batch; unset, the server measures it.
        max_queue_rows, max_queue_ms: rows that may wait, and the longest predicted wait that is
            accepted; unset, what the bundle says, else 4096 and no limit below overload.
        max_wait_ms: the longest time that a batch is held back for clients that were just answered;
            unset, what the bundle says, else as long as that pays.
        deadline_ms: the time of a request, reading included; of a language model's until its first
            token.
        hang_s: a batch that runs for longer, and for 20 times what is expected, hangs, and its
            worker ends.
    """

    bundle: Path | None = None
    grpc_host: str = "127.0.0.1"
    grpc_port: _Port | None = None
    workers: Annotated[int, Field(ge=1, le=256)] = 1
    max_inflight_bytes: Annotated[int, Field(ge=1)] = 1 << 30
    max_connections: Annotated[int, Field(ge=1, le=1 << 20)] = 4096
    keep_alive_s: Annotated[int, Field(ge=1, le=3600)] = 75
    max_body_bytes: Annotated[int, Field(ge=1, le=(1 << 31) - 1)] | None = None
    max_queue_rows: Annotated[int, Field(ge=1)] | None = None
    max_queue_ms: Annotated[float, Field(ge=0, le=3_600_000)] | None = None
    max_rows: Annotated[int, Field(ge=1)] | None = None
    max_length: Annotated[int, Field(ge=1)] | None = None
    max_wait_ms: Annotated[float, Field(ge=0, le=60_000)] | None = None
    hang_s: Annotated[float, Field(gt=0)] = 30.0
    deadline_ms: Annotated[float, Field(gt=0, le=3_600_000)] = 30_000.0

    @property
    def listen_addresses(self) -> Mapping[str, tuple[str, int]]:
        """The addresses and ports to listen on, other than that of HTTP."""
        return {} if self.grpc_port is None else {"grpc": (self.grpc_host, self.grpc_port)}


def load_settings() -> ServerSettings:
    """Return the settings of this process's environment; INVALID_INPUT names a wrong variable."""
    return read_environment(ServerSettings)
