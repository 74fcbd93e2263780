"""The events worth a notice, and their JSON documents. Pure.

A document holds no path, no address and no line of a log: it leaves the machine.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from mlctl.rollout.domain.machine.state_machine import RolloutPhase
from mlctl.rollout.domain.operator_commands import OperatorCommand
from mlctl.rollout.domain.statistics.verdict import HoldReason, first_line
from mlctl.rollout.journal.records import ENDED, JournalEvent

# A notice keeps its id however often it is sent.
_NAMESPACE = uuid.UUID("6d6c6374-6c2e-5e0d-9c3a-1f0a7d6c0001")
_VERDICT = ("action", "gate", "value", "limit", "n")
_MOVES = frozenset(
    {
        RolloutPhase.SHADOW,
        RolloutPhase.SHIFT,
        RolloutPhase.BAKE,
        RolloutPhase.PAUSED,
        RolloutPhase.ROLLBACK,
    }
)


def notice(event: JournalEvent) -> dict[str, Any] | None:
    """Return the document for `event`; None if it needs no notice.

    `id` is the same each time, for receivers that must not act twice; `text` is one line that
    chat services show as it is.
    """
    summary = _summary(event)
    if summary is None:
        return None
    kind, text = summary
    verdict = event.body.get("verdict")
    return {
        "id": str(uuid.uuid5(_NAMESPACE, f"{event.deployment} {event.seq} {event.at!r}")),
        "type": kind,
        "at": datetime.fromtimestamp(event.at, tz=UTC).isoformat(),
        "deployment": event.deployment,
        "rollout": event.rollout,
        "text": f"{event.deployment}: {text}",
        "data": {
            **{name: event.body[name] for name in _KEPT if name in event.body},
            "verdict": _verdict(verdict) if verdict else None,
        },
    }


_KEPT = ("phase", "step", "weight", "candidate", "live", "bento", "digest", "seconds", "role")


def _summary(event: JournalEvent) -> tuple[str, str] | None:
    """The type of the notice and its words."""
    if event.kind in tuple(OperatorCommand):
        return f"rollout.{event.kind}", f"an operator requested: {event.kind.split('_')[0]}"
    summarize = _WORDS.get(event.kind)
    return None if summarize is None else summarize(event.body)


def _transition(body: Mapping[str, Any]) -> str:
    what = "rollback" if "reverts" in body else "rollout"
    return f"a {what} from {body['live']} to {body['candidate']}"


def _phase(body: Mapping[str, Any]) -> tuple[str, str] | None:
    if body["phase"] not in _MOVES:
        return None
    text = f"{body['phase']}, {body['weight']} % of the traffic on the candidate"
    return "rollout.phase", text + _because(body)


def _ended(body: Mapping[str, Any]) -> tuple[str, str]:
    outcome = body["outcome"]
    unwatched = (body.get("verdict") or {}).get("gate") == HoldReason.UNWATCHED
    kind = "unwatched" if unwatched else outcome
    words = f"{body['bento']} {outcome.replace('_', ' ')} after {body['seconds']:.0f} s"
    return f"rollout.{kind}", words + _because(body)


def _process(event: str) -> Callable[[Mapping[str, Any]], tuple[str, str]]:
    return lambda body: (f"process.{event}", f"{body['role']} {_PROCESS[event]}")


_PROCESS = {
    "restarted": "was started again",
    "start_failed": "could not be started; retrying",
    "crash_loop": "fails again and again",
}
_WORDS: Mapping[str, Callable[[Mapping[str, Any]], tuple[str, str] | None]] = {
    "requested": lambda body: ("rollout.begun", f"{_transition(body)} begins"),
    "phase": _phase,
    "traffic_restored": lambda body: (
        "rollout.traffic_restored",
        f"all traffic is back, {body['seconds_since_decision']:.1f} s after the decision",
    ),
    ENDED: _ended,
    "champion_failed": lambda _body: (
        "registry.failed",
        "the promoted model could not be written to the registry; it is retried",
    ),
    "proxy_unavailable": lambda _body: ("proxy.unavailable", "the proxy does not answer"),
    "resumed": lambda body: (
        "rollout.resumed",
        f"it is watched again, after {body['unwatched_seconds']:.0f} s without a daemon",
    ),
    "up": lambda body: ("deployment.up", f"it is up with {body['revision']}"),
    "down": lambda _body: ("deployment.down", "it was taken down"),
    **{what: _process(what) for what in _PROCESS},
}
KINDS = (*_WORDS, *OperatorCommand)


def _because(body: Mapping[str, Any]) -> str:
    verdict = body.get("verdict")
    return f" ({verdict['gate']}: {reason(verdict)})" if verdict else ""


def _verdict(verdict: Mapping[str, Any]) -> dict[str, Any]:
    return {**{name: verdict[name] for name in _VERDICT}, "why": reason(verdict)}


def reason(verdict: Mapping[str, Any]) -> str:
    """Why, in words that may leave the machine."""
    if verdict["gate"] == HoldReason.CONFIG:  # its own words may hold paths
        return "the proxy or the cluster rejected the change of traffic"
    return first_line(verdict["why"])
