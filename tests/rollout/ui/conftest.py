from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mlctl.rollout.journal import paths
from mlctl.rollout.journal.journal import Journal
from tests.support.clock import ManualClock
from tests.support.played import Played


@pytest.fixture
def shop(home: Path, clock: ManualClock) -> Iterator[Played]:
    """The deployment `shop` with a rollout in progress, in the journal of this user."""
    assert home
    with Journal(paths.journal(), clock) as journal:
        yield Played(journal, clock)
