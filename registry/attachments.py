"""Folders attached to the run of an optimized version: log, list, fetch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bundle.errors import ErrorCode, MlctlError
from bundle.paths import check_relative


def attach(client: Any, run_id: str, folder: Path, name: str) -> str:
    """Log `folder` under `name` (a relative path) on the run; return its URI."""
    client.log_artifacts(run_id, str(folder), check_relative(name))
    return f"runs:/{run_id}/{name}"


def attached(client: Any, run_id: str, under: str) -> list[str]:
    """Return the names of the folders in the run's folder `under`, sorted."""
    found = client.list_artifacts(run_id, check_relative(under))
    return sorted(Path(each.path).name for each in found if each.is_dir)


def fetch_attached(client: Any, run_id: str, name: str, destination: Path) -> Path:
    """Copy the folder `name` of the run into `destination`; BENTO_NOT_FOUND if it has none."""
    parent, _, last = check_relative(name).rpartition("/")
    if last not in attached(client, run_id, parent):
        raise MlctlError(ErrorCode.BENTO_NOT_FOUND, f"the run {run_id} has no folder {name}")
    return Path(client.download_artifacts(run_id, name, str(destination)))
