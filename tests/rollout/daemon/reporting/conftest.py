from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rollout.daemon.reporting.cursors import Told


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The journal's file."""
    return tmp_path / "journal.db"


@pytest.fixture
def told(path: Path) -> Iterator[Told]:
    with Told(path) as opened:
        yield opened
