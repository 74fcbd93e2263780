"""A generated Python client as a module of this process."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from mlctl.bento.clients.languages import python_files, write_files
from mlctl.services.online.openapi.model import ApiModel


def load_client(model: ApiModel, folder: Path) -> Any:
    """Write the client of `model` to `folder` and import its package."""
    write_files(folder, python_files(model))
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(f"{model.identifier}_client")
    finally:
        sys.path.remove(str(folder))
