from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bundle.clock import ManualClock
from rollout.seen.told import Told
from rollout.state.journal import Journal
from tests.support.played import Played


@pytest.fixture
def played(journal: Journal, clock: ManualClock) -> Played:
    return Played(journal, clock)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The journal's file."""
    return tmp_path / "journal.db"


@pytest.fixture
def told(path: Path) -> Iterator[Told]:
    with Told(path) as opened:
        yield opened
