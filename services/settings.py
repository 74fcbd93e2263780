"""The server's settings: environment variables with the prefix MLCTL_, checked at start."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, ValidationError
from pydantic_settings import SettingsConfigDict

from bundle.errors import ErrorCode, MlctlError
from services.hybrid.settings import HybridSettings
from services.observe.settings import ObserveSettings
from services.secure.settings import SecureSettings
from services.tensorrt.options import EngineOptions
from services.tensorrt.profile import Range

_PREFIX = "MLCTL_"
_Port = Annotated[int, Field(ge=1, le=65535)]


def parse_lengths(text: str) -> Range:
    """A range written as LEAST:USUAL:GREATEST; ValueError if it is not one."""
    try:
        least, usual, greatest = map(int, text.split(":"))
    except ValueError:
        raise ValueError("write it as LEAST:USUAL:GREATEST, such as 1:128:512") from None
    return Range(least, usual, greatest)


def _check_lengths(text: str) -> str:
    parse_lengths(text)
    return text


class Settings(ObserveSettings, SecureSettings, HybridSettings):
    """How to serve one bundle. `grpc_port` unset means no gRPC; times are in their name's unit.

    `provider` unset is the one that the bundle was made for. `max_wait_ms` is how long a
    busy server may hold a request back to join it with others where that pays (unset: only
    with those who were just answered); an idle server never waits. `max_queue_ms` is the
    longest predicted wait that is accepted, and
    `max_queue_rows` the most rows that wait. These three, unset, are what the bundle says,
    or else that, no limit below overload, and 4096; `max_rows` joins fewer rows than
    the bundle allows. `pad_rows` unset pads batches to the
    bundle's sizes only on CUDA and TensorRT; with `cuda_graphs` the provider cuda runs each of
    these sizes as one CUDA graph. A batch that runs for longer than `hang_s`
    (and 20 times what is expected) counts as hung, and its worker
    ends, so that the supervisor starts another. `deadline_ms` bounds every request,
    reading included. `workers` processes share the ports. Each takes requests whose bodies,
    answered or not, are at most `max_inflight_bytes` together, over at most
    `max_connections` connections of each protocol; one of HTTP is closed after `keep_alive_s`
    without a request: later than most clients and proxies close theirs, for who closes first
    loses no request.
    The `trt_` ones shape TensorRT's engine; `trt_lengths` is the least, usual and greatest
    size of every dynamic dimension but the batch.
    """

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX, env_ignore_empty=True, frozen=True, extra="ignore"
    )

    bundle: Path | None = None
    provider: str | None = None
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
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
    pad_rows: bool | None = None
    cuda_graphs: bool = False
    hang_s: Annotated[float, Field(gt=0)] = 30.0
    deadline_ms: Annotated[float, Field(gt=0, le=3_600_000)] = 30_000.0
    trt_workspace_mb: Annotated[int, Field(ge=1)] | None = None
    trt_lengths: Annotated[str, AfterValidator(_check_lengths)] = "1:128:512"
    trt_build_timeout_s: Annotated[float, Field(gt=0)] = 1800.0

    @property
    def doors(self) -> Mapping[str, tuple[str, int]]:
        """The addresses and ports to listen on, other than that of HTTP."""
        return {} if self.grpc_port is None else {"grpc": (self.grpc_host, self.grpc_port)}

    @property
    def engine(self) -> EngineOptions:
        """How TensorRT is to build the model's engine; other providers build none."""
        workspace = self.trt_workspace_mb
        return EngineOptions(
            parse_lengths(self.trt_lengths),
            None if workspace is None else workspace << 20,
            self.trt_build_timeout_s,
        )


def load_settings() -> Settings:
    """The settings of this process's environment; INVALID_INPUT names the variable at fault."""
    try:
        return Settings()
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        variable = _PREFIX + "_".join(str(part) for part in first["loc"]).upper()
        raise MlctlError(ErrorCode.INVALID_INPUT, f"{variable}: {first['msg']}") from error
