from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from mlctl.rollout.daemon import daemon
from mlctl.rollout.domain.spec import Ports
from mlctl.rollout.journal import paths
from mlctl.rollout.journal.journal import Journal
from tests.support.rollouts import quick_settings, revision


def test_daemon__second_of_a_deployment__exits_at_once(home: Path) -> None:
    assert not home.exists()
    with paths.lock("shop").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert daemon.main("shop") == 0
    assert not paths.journal().exists()


@pytest.mark.usefixtures("home")
def test_daemon__deployment_is_down__exits() -> None:
    with Journal(paths.journal()) as journal:
        journal.create("shop", Ports(1, 2), quick_settings(), revision("tiny:aa"))
        journal.retire("shop")
        assert daemon.main("shop") == 0
        assert "proxy" not in journal.processes("shop")
    assert paths.heartbeat("shop").exists()
