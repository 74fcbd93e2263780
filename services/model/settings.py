"""Settings of a session: environment variables with the prefix MLCTL_."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.model.tensorrt.profile import SizeRange

PREFIX = "MLCTL_"
S = TypeVar("S", bound=BaseModel)


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


class RuntimeSettings(BaseModel):
    """How to open a session, for a server, a batch job or a stream.

    Attributes:
        provider: ONNX Runtime's execution provider: `cpu`, `cuda` or `tensorrt`; unset, the
            bundle's target.
        threads: CPU threads of a model.
        require_signature: full path of the public key that must have signed a bundle.
        max_sequences: answers that a language model writes at once.
        max_sequence_tokens: tokens of a prompt with its answer, at most the model's context; the
            KV cache has room for this times `MLCTL_MAX_SEQUENCES`.
        feature_store: URL of the features of transforms: `redis://`, `rediss://` or
            `sqlite://PATH`.
        feature_timeout_ms: how long a batch waits for the feature store.
        tensorrt_lengths: minimum, optimum and maximum size of dynamic dimensions other than the
            batch, in TensorRT's engines.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    provider: str | None = None
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
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


def read_environment(settings: type[S], environment: Mapping[str, str] = os.environ) -> S:
    """Read `settings` from the environment; INVALID_INPUT names an invalid variable.

    The variable of a field is its name in capitals after `MLCTL_`; an empty one counts as unset.
    """
    variables = {name: environment.get(PREFIX + name.upper()) for name in settings.model_fields}
    try:
        return settings.model_validate({name: text for name, text in variables.items() if text})
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        variable = PREFIX + "_".join(str(part) for part in first["loc"]).upper()
        reason = first["msg"].removeprefix("Value error, ")
        raise MlctlError(ErrorCode.INVALID_INPUT, f"{variable}: {reason}") from error
