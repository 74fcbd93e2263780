from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.ports import free_ports
from mlctl.rollout.client import deployments
from mlctl.rollout.domain.spec import Ports, RolloutSpec
from mlctl.rollout.journal import paths
from mlctl.rollout.journal.journal import Journal
from mlctl.rollout.journal.schema import VERSION, connect, transaction
from tests.support.rollouts import quick_settings, revision


def test_journal__cannot_be_opened__named_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    path.mkdir()
    with pytest.raises(MlctlError) as caught:
        Journal(path)
    assert caught.value.code is ErrorCode.INVALID_INPUT
    assert str(path) in caught.value.message
    assert "MLCTL_HOME" in str(caught.value.hint)


@pytest.mark.usefixtures("home")
def test_up__a_log_cannot_be_written__refused_before_anything_is_recorded() -> None:
    log = paths.directory("shop") / "logs" / "proxy.log"
    log.mkdir()
    with pytest.raises(MlctlError) as caught:
        deployments.up("shop", revision("tiny:aa"), free_ports(1)[0], settings=quick_settings())
    assert (caught.value.code, str(log) in caught.value.message) == (ErrorCode.INVALID_INPUT, True)
    with Journal(paths.journal()) as journal:
        assert journal.events("shop") == ()


@pytest.mark.usefixtures("home")
def test_promote__the_daemons_log_cannot_be_written__no_rollout_is_recorded() -> None:
    paths.daemon_log("shop").mkdir()
    with Journal(paths.journal()) as journal:
        journal.create("shop", Ports(1, 2), quick_settings(), revision("tiny:aa"))
        with pytest.raises(MlctlError, match=r"daemon\.log cannot be written"):
            deployments.promote("shop", revision("tiny:bb"), RolloutSpec())
        assert journal.rollouts("shop") == ()


@pytest.mark.parametrize("version", [0, VERSION + 1], ids=["older", "newer"])
def test_journal__of_another_layout__refused_and_left_as_it_is(
    tmp_path: Path, version: int
) -> None:
    path = tmp_path / "journal.db"
    with sqlite3.connect(path) as other:
        other.execute("create table deployment (name text)")
        other.execute(f"pragma user_version = {version}")
    with pytest.raises(MlctlError, match="another version of mlctl") as caught:
        Journal(path)
    assert caught.value.code is ErrorCode.INVALID_INPUT
    assert str(path) in caught.value.message
    assert other.execute("select count(*) from sqlite_master").fetchone() == (1,)
    other.close()


def test_journal__opened_while_another_writes__needs_no_write_lock(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    Journal(path).close()
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("begin immediate")
    with Journal(path) as journal:
        assert journal.deployments() == ()
    writer.close()


def test_connect__another_connection_writes__reads_without_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.db"
    writer = connect(path)
    monkeypatch.setattr("mlctl.rollout.journal.schema.BUSY_SECONDS", 0.0)
    with transaction(writer):
        reader = connect(path)
        assert reader.execute("select epoch from meta").fetchone()[0] == 0
        reader.close()
    writer.close()
