"""The server's settings: environment variables with the prefix MLCTL_, checked at start."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from services.online.observability.settings import ObserveSettings
from services.online.security.settings import SecureSettings
from services.precomputed.settings import PrecomputedSettings
from services.runtime.settings import PREFIX, RuntimeSettings, read_environment

_Port = Annotated[int, Field(ge=1, le=65535)]


class ServerSettings(RuntimeSettings, ObserveSettings, SecureSettings, PrecomputedSettings):
    """How to serve one bundle. `grpc_port` unset means no gRPC; times are in their name's unit.

    `max_wait_ms` is how long a
    busy server may hold a request back to join it with others where that pays (unset: only
    with those who were just answered); an idle server never waits. `max_queue_ms` is the
    longest predicted wait that is accepted, and
    `max_queue_rows` the most rows that wait. These three, unset, are what the bundle says,
    or else that, no limit below overload, and 4096; `max_rows` joins fewer rows than
    the bundle allows. A batch that runs for longer than `hang_s`
    (and 20 times what is expected) counts as hung, and its worker
    ends, so that the supervisor starts another. `deadline_ms` bounds every request,
    reading included. `workers` processes share the ports. Each takes requests whose bodies,
    answered or not, are at most `max_inflight_bytes` together, over at most
    `max_connections` connections of each protocol; one of HTTP is closed after `keep_alive_s`
    without a request: later than most clients and proxies close theirs, for who closes first
    loses no request.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, frozen=True, extra="ignore"
    )

    bundle: Path | None = None
    grpc_host: str = "127.0.0.1"
    grpc_port: _Port | None = None
    workers: Annotated[int, Field(ge=1, le=256)] = 1
    max_inflight_bytes: Annotated[int, Field(ge=1)] = 1 << 30
    max_connections: Annotated[int, Field(ge=1, le=1 << 20)] = 4096
    keep_alive_s: Annotated[int, Field(ge=1, le=3600)] = 75
    max_body_bytes: Annotated[int, Field(ge=1, le=(1 << 31) - 1)] = 64 << 20
    max_queue_rows: Annotated[int, Field(ge=1)] | None = None
    max_queue_ms: Annotated[float, Field(ge=0, le=3_600_000)] | None = None
    max_rows: Annotated[int, Field(ge=1)] | None = None
    max_wait_ms: Annotated[float, Field(ge=0, le=60_000)] | None = None
    hang_s: Annotated[float, Field(gt=0)] = 30.0
    deadline_ms: Annotated[float, Field(gt=0, le=3_600_000)] = 30_000.0

    @property
    def doors(self) -> Mapping[str, tuple[str, int]]:
        """The addresses and ports to listen on, other than that of HTTP."""
        return {} if self.grpc_port is None else {"grpc": (self.grpc_host, self.grpc_port)}


def load_settings() -> ServerSettings:
    """Return the settings of this process's environment; INVALID_INPUT names a wrong variable."""
    return read_environment(ServerSettings)
