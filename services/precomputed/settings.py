"""Settings of precomputed predictions: the variables MLCTL_PRECOMPUTED*."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from mlctl.services.model.settings import read_environment
from mlctl.services.precomputed.base import NAME_PATTERN
from mlctl.services.precomputed.store_urls import check_location


class StoreSettings(BaseModel):
    """Where precomputed predictions are.

    Attributes:
        precomputed_store: a folder, `redis://HOST/0` or `rediss://...`; unset, the folder
            `precomputed` of `$MLCTL_HOME`.
    """

    # The URL of a store can contain a password.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    precomputed_store: Annotated[str, AfterValidator(check_location)] | None = None


class PrecomputedSettings(StoreSettings):
    """Precomputed predictions of a server.

    Attributes:
        precomputed: name of the predictions that the server looks up; unset, none.
        precomputed_ttl_s: maximum age of a prediction; unset, no limit.
        precomputed_timeout_ms: longest lookup over the network; then the model answers.
    """

    precomputed: Annotated[str, Field(pattern=NAME_PATTERN)] | None = None
    precomputed_ttl_s: Annotated[float, Field(gt=0)] | None = None
    precomputed_timeout_ms: Annotated[float, Field(gt=0, le=60_000)] = 20.0


def read_store_location() -> str | None:
    """Read the store's location from the environment, None if unset; INVALID_INPUT if malformed."""
    return read_environment(StoreSettings).precomputed_store
