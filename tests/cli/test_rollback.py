"""What `mlctl rollback` says while the daemon takes a promotion back."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from mlctl.cli.main import cli
from mlctl.rollout.client import deployments
from mlctl.rollout.domain.machine.state_machine import RolloutPhase, RolloutProgress
from mlctl.rollout.domain.spec import Outcome, RolloutSpec, Slot
from mlctl.rollout.journal.records import JournalEvent, Rollout
from tests.support.rollouts import revision

RETURN = Rollout(
    id=2,
    deployment="shop",
    slot=Slot.BLUE,
    live=revision("tiny:bb"),
    candidate=revision("tiny:aa"),
    spec=RolloutSpec(),
    progress=RolloutProgress(phase=RolloutPhase.DONE),
    outcome=Outcome.RESTORED,
    created=1.0,
    reverts=1,
)
RESTORED = JournalEvent(7, "shop", 2, 2.0, "traffic_restored", {"seconds_since_decision": 0.25})


@pytest.fixture(autouse=True)
def interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The traffic is back, and the alias is not written before Ctrl-C."""

    def follow(_name: str, _rollout: int) -> Iterator[JournalEvent]:
        yield RESTORED
        raise KeyboardInterrupt

    monkeypatch.setattr(deployments, "rollback", lambda _name, _reason: RETURN)
    monkeypatch.setattr(deployments, "follow", follow)
    monkeypatch.setattr(deployments, "history", lambda _name: (RETURN,))


def test_rollback__traffic_is_back__is_said_before_the_alias_is_written() -> None:
    result = CliRunner().invoke(cli, ["rollback", "shop"])
    assert result.exit_code == 0, result.output
    expected = "all traffic of shop is on tiny:aa after 0.0 s; tiny:bb is taken back\n"
    assert result.stdout == expected
    assert result.stderr == "The daemon writes the alias.\n"


def test_rollback_json__traffic_is_back__prints_the_document_before_the_alias_is_written() -> None:
    result = CliRunner().invoke(cli, ["rollback", "shop", "--json"])
    assert result.exit_code == 0, result.output
    expected = {"name": "shop", "rollout": 2, "serves": "tiny:aa", "seconds_since_decision": 0.25}
    assert json.loads(result.stdout) == expected
