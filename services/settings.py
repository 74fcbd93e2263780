"""The server's settings: environment variables with the prefix MLCTL_, checked at start."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationError
from pydantic_settings import SettingsConfigDict

from bundle.errors import ErrorCode, MlctlError
from services.hybrid.settings import HybridSettings
from services.observe.settings import ObserveSettings
from services.secure.settings import SecureSettings
from services.tensorrt.options import EngineFlags, EngineOptions, HardwareCompatibility
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
    the bundle allows; under overload a predicted wait of less
    than `overload_patience_ms` is accepted all the same. `max_long_requests` is how many streams
    and requests above a batch's rows are open at once. `pad_rows` unset pads batches to the
    bundle's sizes only on CUDA and TensorRT; graphs of these are captured where the
    model allows it if `cuda_graphs` is auto. A batch that runs for longer than `hang_s`
    (and 20 times what is expected) counts as hung, and unless `hang_exit` is off its worker
    ends, so that the supervisor starts another. `deadline_ms` bounds every request,
    reading included. `workers` processes share the ports. Each takes requests whose bodies,
    answered or not, are at most `max_inflight_bytes` together, over at most
    `max_connections` connections of each protocol; one of HTTP is closed after `keep_alive_s`
    without a request: later than most clients and proxies close theirs, for who closes first
    loses no request. `lean_http` answers V2 infer requests in
    the HTTP protocol itself; off, they take the way through ASGI and uvicorn's own protocol.
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
    lean_http: bool = True
    workers: Annotated[int, Field(ge=1, le=256)] = 1
    max_inflight_bytes: Annotated[int, Field(ge=1)] = 1 << 30
    max_connections: Annotated[int, Field(ge=1, le=1 << 20)] = 4096
    keep_alive_s: Annotated[int, Field(ge=1, le=3600)] = 75
    max_body_bytes: Annotated[int, Field(ge=1, le=(1 << 31) - 1)] = 64 << 20
    max_queue_rows: Annotated[int, Field(ge=1)] | None = None
    max_queue_ms: Annotated[float, Field(ge=0, le=3_600_000)] | None = None
    overload_patience_ms: Annotated[float, Field(ge=0, le=3_600_000)] = 0.0
    max_long_requests: Annotated[int, Field(ge=1)] = 64
    max_rows: Annotated[int, Field(ge=1)] | None = None
    max_wait_ms: Annotated[float, Field(ge=0, le=60_000)] | None = None
    pad_rows: bool | None = None
    cuda_graphs: Literal["auto", "off"] = "off"
    hang_s: Annotated[float, Field(gt=0)] = 30.0
    hang_exit: bool = True
    deadline_ms: Annotated[float, Field(gt=0, le=3_600_000)] = 30_000.0
    trt_version_compatible: bool = False
    trt_hardware_compatibility: HardwareCompatibility = HardwareCompatibility.NONE
    trt_workspace_mb: Annotated[int, Field(ge=1)] | None = None
    trt_lengths: Annotated[str, AfterValidator(_check_lengths)] = "1:128:512"
    trt_build_timeout_s: Annotated[float, Field(gt=0)] = 1800.0

    @property
    def doors(self) -> Mapping[str, tuple[str, int]]:
        """The addresses and ports that it is to listen on beside that of HTTP."""
        grpc, admin = self.grpc_port, None if self.admin_dir else self.admin_port
        ports = {"grpc": (self.grpc_host, grpc), "admin": (self.admin_host, admin)}
        return {name: (host, port) for name, (host, port) in ports.items() if port is not None}

    @property
    def engine(self) -> EngineOptions:
        """How TensorRT is to build the model's engine; other providers build none."""
        workspace = self.trt_workspace_mb
        flags = EngineFlags(
            version_compatible=self.trt_version_compatible,
            hardware_compatibility=self.trt_hardware_compatibility,
            workspace_bytes=None if workspace is None else workspace << 20,
        )
        return EngineOptions(flags, parse_lengths(self.trt_lengths), self.trt_build_timeout_s)


def load_settings() -> Settings:
    """The settings of this process's environment; INVALID_INPUT names the variable at fault."""
    try:
        return Settings()
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        variable = _PREFIX + "_".join(str(part) for part in first["loc"]).upper()
        raise MlctlError(ErrorCode.INVALID_INPUT, f"{variable}: {first['msg']}") from error
