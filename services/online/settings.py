"""The server's settings: environment variables with the prefix MLCTL_, checked at start."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field

from mlctl.services.model.settings import RuntimeSettings, read_environment
from mlctl.services.online.observability.settings import ObserveSettings
from mlctl.services.online.security.settings import SecureSettings
from mlctl.services.precomputed.settings import PrecomputedSettings

_Port = Annotated[int, Field(ge=1, le=65535)]


class ServerSettings(RuntimeSettings, ObserveSettings, SecureSettings, PrecomputedSettings):
    """How to serve one bundle; times are in the unit of their name.

    Attributes:
        max_rows: the largest batch; it lowers what the server measured.
        max_wait_ms: the longest time that a batch waits for clients that were just answered, 0 for
            none; unset, what the bundle says, else as long as that pays.
        max_queue_rows: rows that may wait, and of one request: more are 413, gRPC
            `RESOURCE_EXHAUSTED`; unset, what the bundle says, else 4096, of a language model 256.
        max_queue_ms: the longest predicted wait that is accepted; unset, what the bundle says, else
            no limit below overload.
        deadline_ms: time of a request, reading included; of generated text until the first token.
        hang_s: a batch that runs for longer, and for 20 times its expected time, counts as hung,
            and its worker is replaced.
        max_length: largest size of a dynamic dimension other than the rows, such as a sequence's:
            above it 413, gRPC `RESOURCE_EXHAUSTED`; unset, what the bundle says, else no limit.
        max_body_bytes: largest request, as received and as inflated: 413, gRPC
            `RESOURCE_EXHAUSTED`; unset, what the bundle says, else 64 MiB.
        max_inflight_bytes: bytes received of all unanswered requests of a worker: beyond it 503
            `queue_full`.
        max_connections: connections per worker and protocol.
        proxied: all connections are a proxy's, and carry the requests of many clients: those that
            are cancelled do not end one; `mlctl up` and `mlctl manifests` set it.
        keep_alive_s: an idle HTTP connection is closed after this time. Set it above the keep-alive
            of a proxy in front: the side that closes first loses no request.
        workers: processes that share the ports.
        grpc_port: gRPC port, in images 3001; unset, no gRPC.
        grpc_host: address of the gRPC port; in images all addresses.
        bundle: the bundle that plain `bentoml serve` uses; unset, `./model`.
    """

    max_rows: Annotated[int, Field(ge=1)] | None = None
    max_wait_ms: Annotated[float, Field(ge=0, le=60_000)] | None = None
    max_queue_rows: Annotated[int, Field(ge=1)] | None = None
    max_queue_ms: Annotated[float, Field(ge=0, le=3_600_000)] | None = None
    deadline_ms: Annotated[float, Field(gt=0, le=3_600_000)] = 30_000.0
    hang_s: Annotated[float, Field(gt=0)] = 30.0
    max_length: Annotated[int, Field(ge=1)] | None = None
    max_body_bytes: Annotated[int, Field(ge=1, le=(1 << 31) - 1)] | None = None
    max_inflight_bytes: Annotated[int, Field(ge=1)] = 1 << 30
    max_connections: Annotated[int, Field(ge=1, le=1 << 20)] = 4096
    proxied: bool = False
    keep_alive_s: Annotated[int, Field(ge=1, le=3600)] = 75
    workers: Annotated[int, Field(ge=1, le=256)] = 1
    grpc_port: _Port | None = None
    grpc_host: str = "127.0.0.1"
    bundle: Path | None = None

    @property
    def listen_addresses(self) -> Mapping[str, tuple[str, int]]:
        """The addresses and ports to listen on besides that of HTTP."""
        return {} if self.grpc_port is None else {"grpc": (self.grpc_host, self.grpc_port)}


def load_settings() -> ServerSettings:
    """Return the settings of this process's environment; INVALID_INPUT names a wrong variable."""
    return read_environment(ServerSettings)
