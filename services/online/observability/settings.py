"""The settings of observability: environment variables MLCTL_..., checked at start."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, Field, ValidationInfo, field_validator

OFF = "off"


def _names(value: object) -> object:
    """Return the names of a comma-separated list."""
    if isinstance(value, str):
        return tuple(name.strip() for name in value.split(",") if name.strip())
    return value


class ObserveSettings(BaseModel):
    """Access log, slow requests, traces and samples; all of them are off by default.

    Attributes:
        access_log: `off`, `stdout`, `stderr` or a file, which is opened anew after it was moved.
        slow_ms: a request that takes at least this long has a line in the server's log, with the
            time of each stage.
        otlp_endpoint: base URL of an OpenTelemetry collector; requests whose caller records its
            trace become spans there.
        sample_dir: folder of payload samples.
        sample_share: share of the requests that is sampled.
        sample_redact: tensors that are never written, separated by commas.
        sample_control: JSON file that changes sampling while the server runs.
    """

    access_log: str = OFF
    slow_ms: Annotated[float, Field(gt=0)] | None = None
    otlp_endpoint: Annotated[str, Field(pattern=r"^https?://\S+$")] | None = None
    sample_dir: Path | None = None
    sample_share: Annotated[float, Field(ge=0, le=1)] = 0.0
    sample_redact: Annotated[tuple[str, ...], BeforeValidator(_names)] = ()
    sample_control: Path | None = None

    @field_validator("sample_share", "sample_control")
    @classmethod
    def _needs_folder(cls, value: object, info: ValidationInfo) -> object:
        if value and info.data.get("sample_dir") is None:
            raise ValueError("set MLCTL_SAMPLE_DIR, too: the folder for what is recorded")
        return value
