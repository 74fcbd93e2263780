"""A rollout described by a YAML file: the fields of `RolloutSpec`, times in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from pydantic import TypeAdapter

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.rollout.domain.machine import gates
from mlctl.rollout.domain.spec import RolloutSpec


def read_spec(path: Path) -> dict[str, Any]:
    """Return the fields of the file; INVALID_INPUT if it is no mapping or has an unknown field.

    `RolloutSpec` checks their values.
    """
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise MlctlError(ErrorCode.INVALID_INPUT, f"{path} is no readable YAML file") from error
    if not isinstance(document, Mapping):
        raise MlctlError(ErrorCode.INVALID_INPUT, f"{path} holds no mapping of fields to values")
    names = {field.name for field in fields(RolloutSpec)}
    unknown = sorted(str(name) for name in document if name not in names)
    if unknown:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{path} has an unknown field {unknown[0]!r}",
            f"The fields are: {', '.join(sorted(names))}.",
        )
    return dict(document)


def spec_yaml(spec: RolloutSpec) -> str:
    """Return the text of a file that describes `spec`; a comment says what its times exclude."""
    document = {**asdict(spec), "steps": list(spec.steps)}
    document["on_inconclusive"] = spec.on_inconclusive.value
    text: str = yaml.safe_dump(document, sort_keys=False, default_flow_style=None)
    return f"# {gates.not_excluded(spec.representative_seconds)}\n{text}"


def spec_schema() -> dict[str, Any]:
    """Return the JSON schema of such a file."""
    schema = TypeAdapter(RolloutSpec).json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "description": "A rollout for `mlctl promote -f`: steps, gates and times in seconds.",
        "additionalProperties": False,
    }
