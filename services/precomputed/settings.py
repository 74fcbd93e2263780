"""The settings of hybrid serving: environment variables MLCTL_HYBRID..., checked at start."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from bundle.errors import ErrorCode, MlctlError
from services.precomputed.base import NAME_PATTERN
from services.precomputed.store_urls import check_place


class PlaceSettings(BaseSettings):
    """`hybrid_store` is where precomputed answers are: a redis:// or rediss:// URL, or the
    path of a folder; unset, the folder `hybrid` of $MLCTL_HOME."""

    model_config = SettingsConfigDict(
        env_prefix="MLCTL_",
        env_ignore_empty=True,
        frozen=True,
        extra="ignore",
        hide_input_in_errors=True,  # the URL of a store can contain a password
    )

    hybrid_store: Annotated[str, AfterValidator(check_place)] | None = None


class HybridSettings(PlaceSettings):
    """Which precomputed answers a server has; none if `hybrid`, their name, is unset.

    One that is older than `hybrid_ttl_s` is not used. A lookup over the network has
    `hybrid_timeout_ms`, after which the model is asked.
    """

    hybrid: Annotated[str, Field(pattern=NAME_PATTERN)] | None = None
    hybrid_ttl_s: Annotated[float, Field(gt=0)] | None = None
    hybrid_timeout_ms: Annotated[float, Field(gt=0, le=60_000)] = 20.0


def load_place() -> str | None:
    """Where this process's environment has precomputed answers; INVALID_INPUT if nowhere."""
    try:
        return PlaceSettings().hybrid_store
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        raise MlctlError(ErrorCode.INVALID_INPUT, f"MLCTL_HYBRID_STORE: {first['msg']}") from error
