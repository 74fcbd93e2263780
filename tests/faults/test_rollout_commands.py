"""What an operator asks for, by the real commands, of a real daemon behind a real proxy."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mlctl.cli.main import cli
from mlctl.core.ports import free_ports
from mlctl.rollout.client import deployments
from mlctl.rollout.domain.machine.state_machine import RolloutPhase
from mlctl.rollout.domain.spec import Outcome, Slot
from mlctl.rollout.domain.statistics.verdict import HoldReason
from tests.support.rollouts import (
    Load,
    kill_daemon,
    quick_settings,
    quick_spec,
    revision,
    story,
    wait_for_event,
)

pytestmark = pytest.mark.slow
HALF = quick_spec(steps=(50, 100), step_seconds=600.0)


@pytest.fixture
def port() -> int:
    return free_ports(1)[0]


@pytest.fixture
def shop(tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("MLCTL_HOME", str(tmp_path / "home"))
    deployments.up("shop", revision("tiny:aa"), port, settings=quick_settings())
    yield "shop"
    deployments.down("shop")


def mlctl(*arguments: str, code: int = 0) -> dict[str, Any]:
    result = CliRunner().invoke(cli, [*arguments, "--json"])
    assert result.exit_code == code, result.output
    document = json.loads(result.stdout)
    assert isinstance(document, dict)
    return document


def weight_of_green() -> int:
    (status,) = deployments.status("shop")
    assert status.weights is not None
    return status.weights[Slot.GREEN]


def begin(tag: str) -> int:
    """A rollout that stays at 50 %."""
    rollout = deployments.promote("shop", revision(tag), HALF)
    wait_for_event("shop", rollout, lambda event: event.body.get("phase") == RolloutPhase.SHIFT)
    return rollout


def test_operator_commands__pause_takeover_resume_full__are_in_the_history(
    shop: str, port: int
) -> None:
    with Load(port) as load:
        rollout = begin("tiny:bb")
        assert mlctl("pause", shop)["phase"] == RolloutPhase.PAUSED
        paused = time.time()
        kill_daemon(shop)
        assert weight_of_green() == 50
        assert mlctl("resume", shop)["phase"] == RolloutPhase.SHIFT
        assert "not paused" in mlctl("resume", shop, code=3)["error"]["message"]
        assert mlctl("promote", shop, "--full", "--detach")["rollout"] == rollout
        events = list(deployments.follow(shop, rollout))
    assert load.failed == 0, load.answers
    ended = events[-1].body
    assert ended["outcome"] == Outcome.PROMOTED, story(events)
    assert (ended["verdict"]["gate"], weight_of_green()) == (HoldReason.OPERATOR, 100)
    moment = mlctl("history", shop, "--at", time.strftime("%FT%T", time.localtime(paused + 1)))
    assert moment["live"]["bento"] == "tiny:aa"
    assert [each["bento"] for each in mlctl("history", shop)["live"]] == ["tiny:aa", "tiny:bb"]


def test_rollback__under_load__fails_no_request(shop: str, port: int) -> None:
    with Load(port) as load:
        rollout = begin("tiny:bb")
        mlctl("rollback", shop, "--reason", "wrong one")
    (*_, ended) = deployments.events(shop, rollout=rollout)
    assert (ended.kind, ended.body["outcome"]) == ("ended", Outcome.ROLLED_BACK)
    assert ended.body["verdict"]["why"] == "wrong one"
    assert weight_of_green() == 0
    assert load.failed == 0, load.answers
    assert mlctl("rollback", shop, code=3)["error"]["code"] == "not_found"


def test_plan__traffic_changes__follows_it(shop: str, port: int) -> None:
    short = ("--step-time", "1s", "--min-requests", "5", "--bake-time", "1s")
    idle = mlctl("promote", shop, "--plan", *short, code=11)
    assert (idle["ends"], idle["seconds"], idle["requests_per_second"]) == (False, None, 0.0)
    with Load(port):
        busy = mlctl("promote", shop, "--plan", *short)
    assert busy["ends"]
    assert busy["requests_per_second"] > 1
    assert [step["weight"] for step in busy["steps"]] == [0, 1, 5, 25, 50, 100]
