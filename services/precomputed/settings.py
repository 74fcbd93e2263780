"""Settings of precomputed predictions: the variables MLCTL_PRECOMPUTED*."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from services.precomputed.base import NAME_PATTERN
from services.precomputed.store_urls import check_location
from services.runtime.settings import read_environment


class StoreSettings(BaseModel):
    """`precomputed_store` is the store of precomputed predictions: a redis:// or rediss:// URL, or
    the path of a folder; unset, the folder `precomputed` of $MLCTL_HOME."""

    # The URL of a store can contain a password.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    precomputed_store: Annotated[str, AfterValidator(check_location)] | None = None


class PrecomputedSettings(StoreSettings):
    """The precomputed predictions of a server; none if `precomputed`, their name, is unset.

    Answers older than `precomputed_ttl_s` are not used. A lookup over the network is limited to
    `precomputed_timeout_ms`; then the model answers.
    """

    precomputed: Annotated[str, Field(pattern=NAME_PATTERN)] | None = None
    precomputed_ttl_s: Annotated[float, Field(gt=0)] | None = None
    precomputed_timeout_ms: Annotated[float, Field(gt=0, le=60_000)] = 20.0


def read_store_location() -> str | None:
    """Read the store's location from the environment, None if unset; INVALID_INPUT if malformed."""
    return read_environment(StoreSettings).precomputed_store
