from __future__ import annotations

import json
from typing import Any

from mlctl.rollout.daemon.reporting.notices import KINDS, notice
from mlctl.rollout.domain.machine.state_machine import RolloutPhase
from mlctl.rollout.domain.operator_commands import OperatorCommand
from mlctl.rollout.journal.records import JournalEvent
from tests.support.played import Played


def notices(played: Played) -> list[dict[str, Any]]:
    return [found for event in played.journal.events("shop") if (found := notice(event))]


def verdict(gate: str, why: str) -> dict[str, Any]:
    return {"action": "rollback", "gate": gate, "value": 1.0, "limit": 0.5, "n": 9, "why": why}


def ended(gate: str, why: str) -> JournalEvent:
    body = {
        "outcome": "rolled_back",
        "verdict": verdict(gate, why),
        "bento": "tiny:bb",
        "seconds": 3.2,
    }
    return JournalEvent(7, "shop", 1, 1000.0, "ended", body)


def test_notices__whole_promotion__have_types_and_stable_ids(played: Played) -> None:
    played.until(RolloutPhase.DONE)
    told = notices(played)
    assert [each["type"] for each in told] == [
        "deployment.up",
        "rollout.begun",
        "rollout.phase",
        "rollout.phase",
        "rollout.phase",
        "rollout.promoted",
    ]
    assert told[-1]["text"].startswith("shop: tiny:bb promoted after")
    assert told[2]["data"]["weight"] == 10
    assert len({each["id"] for each in told}) == len(told)
    assert notices(played) == told  # the same ids each time


def test_notices__rollback__has_the_gate_and_the_reason(played: Played) -> None:
    played.until(RolloutPhase.SHIFT)
    played.until(RolloutPhase.DONE, errors=10)
    told = {each["type"]: each for each in notices(played)}
    assert {"rollout.rolled_back", "rollout.traffic_restored"} <= set(told)
    assert told["rollout.rolled_back"]["data"]["verdict"]["gate"] == "errors_vs_limit"
    assert "requests failed" in told["rollout.rolled_back"]["text"]


def test_notices__rollout_without_data__is_inconclusive(played: Played) -> None:
    played.until(RolloutPhase.SHIFT)
    played.until(RolloutPhase.DONE, requests=0)
    assert notices(played)[-1]["type"] == "rollout.inconclusive"


def test_notices__operator_command__is_reported(played: Played) -> None:
    played.until(RolloutPhase.SHIFT)
    played.journal.request("shop", OperatorCommand.PAUSE, "lunch")
    assert notices(played)[-1]["type"] == "rollout.pause_requested"
    assert "pause" in notices(played)[-1]["text"]


def test_notice__unwatched_rollout__has_its_own_type() -> None:
    told = notice(ended("unwatched", "nobody watched the rollout for 60 s"))
    assert told is not None
    assert told["type"] == "rollout.unwatched"


def test_notice__events_with_log_text__contain_none_of_it() -> None:
    for event in (
        ended("ready", "it ended before it was ready; its log ends:\n/home/me/secret.py: oops"),
        ended("config", "Envoy said: /home/me/secret.py: oops"),
        JournalEvent(
            8, "shop", None, 1.0, "restarted", {"role": "blue/0", "log": "secret", "why": "x"}
        ),
        JournalEvent(9, "shop", None, 1.0, "proxy_unavailable", {"message": "secret"}),
        JournalEvent(9, "shop", None, 1.0, "champion_failed", {"message": "secret"}),
    ):
        told = notice(event)
        assert told is not None
        assert "secret" not in json.dumps(told)
        assert event.kind in KINDS


def test_notice__ticks__are_not_reported(played: Played) -> None:
    played.until(RolloutPhase.BAKE)
    ticks = [event for event in played.journal.events("shop") if event.kind == "tick"]
    assert ticks
    assert not any(map(notice, ticks))
