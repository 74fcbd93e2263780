"""Manifests as YAML: the same plan always gives the same bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from bento.manifests.plan import ManifestPlan
from bundle.errors import ErrorCode, MlctlError
from bundle.files import write_atomic

_WIDTH = 100


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Writes lists indented, and never a reference to what came before."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - yaml's signature
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> Any:  # noqa: ARG002 - yaml's signature
        return super().increase_indent(flow, False)


def render(plan: ManifestPlan, files: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, str]:
    """The text of each file: a line on what it runs, then its documents."""
    head = f"# {plan.model.tag} ({plan.model.digest})\n# Resources: {plan.resources.reason}\n"
    return {name: head + _documents(documents) for name, documents in files.items()}


def write(folder: Path, texts: Mapping[str, str]) -> None:
    """Write each file into `folder`; INVALID_INPUT if that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            write_atomic(folder / name, text.encode())
    except OSError as error:
        raise MlctlError(
            ErrorCode.INVALID_INPUT, f"{folder} cannot be written: {error.strerror}"
        ) from error


def _documents(documents: Sequence[Mapping[str, Any]]) -> str:
    return "".join(
        "---\n"
        + yaml.dump(dict(each), Dumper=_Dumper, sort_keys=False, width=_WIDTH, allow_unicode=True)
        for each in documents
    )
