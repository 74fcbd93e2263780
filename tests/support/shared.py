"""What all processes of one test run share, made by the first that needs it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of this run; xdist gives each of its processes a folder inside of it."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
