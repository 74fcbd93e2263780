from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mlctl.rollout.journal.journal import Journal
from tests.support.clock import ManualClock
from tests.support.played import Played


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000.0)


@pytest.fixture
def journal(tmp_path: Path, clock: ManualClock) -> Iterator[Journal]:
    with Journal(tmp_path / "journal.db", clock) as opened:
        yield opened


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MLCTL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def played(journal: Journal, clock: ManualClock) -> Played:
    return Played(journal, clock)
