from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rollout.daemon.reporting.cursors import EventCursors


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The journal's file."""
    return tmp_path / "journal.db"


@pytest.fixture
def cursors(path: Path) -> Iterator[EventCursors]:
    with EventCursors(path) as opened:
        yield opened
