"""Settings of a session: environment variables with the prefix MLCTL_."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import AfterValidator, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from bundle.errors import ErrorCode, MlctlError
from services.runtime.tensorrt.profile import SizeRange

PREFIX = "MLCTL_"
S = TypeVar("S", bound=BaseSettings)


def parse_lengths(text: str) -> SizeRange:
    """Parse a range written as MIN:OPT:MAX; ValueError if it is not one."""
    try:
        minimum, optimum, maximum = map(int, text.split(":"))
    except ValueError:
        raise ValueError("write it as MIN:OPT:MAX, such as 1:128:512") from None
    return SizeRange(minimum, optimum, maximum)


def _check_lengths(text: str) -> str:
    parse_lengths(text)
    return text


class RuntimeSettings(BaseSettings):
    """How to open a session, for a server, a batch job or a stream.

    Attributes:
        provider: ONNX Runtime's execution provider; unset, the bundle's target.
        threads: CPU threads of the session.
        cuda_graphs: run each of the bundle's batch sizes as one CUDA graph (provider cuda).
        require_signature: the public key that must have signed a bundle before it is loaded.
        max_sequences: the answers that a language model writes at once.
        max_sequence_tokens: of a prompt with its answer; at most the model's context. The KV cache
            is as large as `max_sequences` of these need.
        feature_store: redis://, rediss:// or sqlite:// URL of the features of transforms.
        feature_timeout_ms: how long a batch waits for the feature store.
        tensorrt_lengths: MIN:OPT:MAX size of every dynamic dimension but the batch, for engines.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, frozen=True, extra="ignore"
    )

    provider: str | None = None
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
    cuda_graphs: bool = False
    require_signature: Path | None = None
    max_sequences: Annotated[int, Field(ge=1, le=256)] = 8
    max_sequence_tokens: Annotated[int, Field(ge=2, le=1 << 20)] = 4096
    feature_store: Annotated[str, Field(pattern=r"^(redis|rediss|sqlite)://.")] | None = None
    feature_timeout_ms: Annotated[int, Field(ge=1, le=60_000)] = 100
    tensorrt_lengths: Annotated[str, AfterValidator(_check_lengths)] = "1:128:512"

    @property
    def lengths(self) -> SizeRange:
        """`tensorrt_lengths` as a range."""
        return parse_lengths(self.tensorrt_lengths)


def read_environment(settings: type[S]) -> S:
    """Read `settings` from this process's environment; INVALID_INPUT names an invalid variable."""
    try:
        return settings()
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        variable = PREFIX + "_".join(str(part) for part in first["loc"]).upper()
        reason = first["msg"].removeprefix("Value error, ")
        raise MlctlError(ErrorCode.INVALID_INPUT, f"{variable}: {reason}") from error
