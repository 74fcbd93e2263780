"""Settings of precomputed predictions: the variables MLCTL_PRECOMPUTED*, checked at start."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from bundle.errors import ErrorCode, MlctlError
from services.precomputed.base import NAME_PATTERN
from services.precomputed.store_urls import check_location


class StoreSettings(BaseSettings):
    """`precomputed_store` is where precomputed answers are: a redis:// or rediss:// URL, or the
    path of a folder; unset, the folder `precomputed` of $MLCTL_HOME."""

    model_config = SettingsConfigDict(
        env_prefix="MLCTL_",
        env_ignore_empty=True,
        frozen=True,
        extra="ignore",
        hide_input_in_errors=True,  # the URL of a store can contain a password
    )

    precomputed_store: Annotated[str, AfterValidator(check_location)] | None = None


class PrecomputedSettings(StoreSettings):
    """Which precomputed answers a server has; none if `precomputed`, their name, is unset.

    One that is older than `precomputed_ttl_s` is not used. A lookup over the network has
    `precomputed_timeout_ms`, after which the model is asked.
    """

    precomputed: Annotated[str, Field(pattern=NAME_PATTERN)] | None = None
    precomputed_ttl_s: Annotated[float, Field(gt=0)] | None = None
    precomputed_timeout_ms: Annotated[float, Field(gt=0, le=60_000)] = 20.0


def read_store_location() -> str | None:
    """Where this process's environment has precomputed answers; INVALID_INPUT if nowhere."""
    try:
        return StoreSettings().precomputed_store
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        raise MlctlError(
            ErrorCode.INVALID_INPUT, f"MLCTL_PRECOMPUTED_STORE: {first['msg']}"
        ) from error
