"""The journal's rows as values, and their JSON forms."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Any

from rollout.judging.counts import Counts
from rollout.judging.gates import Action, Evidence, Gate, Verdict
from rollout.kubernetes.target import Target
from rollout.machine import Phase, Progress
from rollout.model import (
    Colour,
    Endpoint,
    Outcome,
    Ports,
    Revision,
    RolloutSpec,
    Settings,
)
from rollout.newer import described, ordered
from rollout.ports import Served
from rollout.process_ref import ProcessRef
from rollout.shadow.agreement import ShadowEvidence
from rollout.shadow.window import ShadowWindow
from rollout.state.wishes import Request, Wish

TICK = "tick"
ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Deployment:
    """A deployment: which colour is live with which revision, and where it listens.

    `champion` is the digest last written to the registry; `epoch` is its daemon's.
    """

    name: str
    up: bool
    ports: Ports
    settings: Settings
    colour: Colour
    live: Revision
    champion: str | None
    epoch: int
    created: float


@dataclass(frozen=True, slots=True)
class Rollout:
    """One promotion; `colour` is the candidate's."""

    id: int
    deployment: str
    colour: Colour
    live: Revision
    candidate: Revision
    spec: RolloutSpec
    progress: Progress
    outcome: Outcome | None
    created: float


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the record; `seq` rises over the whole journal."""

    seq: int
    deployment: str
    rollout: int | None
    at: float
    kind: str
    body: Mapping[str, Any]


def dumps(value: Any) -> str:
    """A frozen value, or a document, as JSON text."""
    document = value if isinstance(value, dict) else asdict(value)
    # A rollout of an hour has thousands of ticks: no spaces.
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _settings_from(document: dict[str, Any]) -> Settings:
    target = document.get("kubernetes")
    kubernetes = ordered(Target, target) if target else None
    return ordered(Settings, {**document, "kubernetes": kubernetes})


def deployment_from(row: sqlite3.Row) -> Deployment:
    """A row of `deployment`."""
    return Deployment(
        name=row["name"],
        up=bool(row["up"]),
        ports=described(Ports, json.loads(row["ports"])),
        settings=_settings_from(json.loads(row["settings"])),
        colour=Colour(row["colour"]),
        live=described(Revision, json.loads(row["live"])),
        champion=row["champion"],
        epoch=row["epoch"],
        created=row["created"],
    )


def rollout_from(row: sqlite3.Row) -> Rollout:
    """A row of `rollout`."""
    return Rollout(
        id=row["id"],
        deployment=row["deployment"],
        colour=Colour(row["colour"]),
        live=described(Revision, json.loads(row["live"])),
        candidate=described(Revision, json.loads(row["candidate"])),
        spec=RolloutSpec.from_json(row["spec"]),
        progress=_progress_from(json.loads(row["progress"]), row["id"]),
        outcome=Outcome(row["outcome"]) if row["outcome"] else None,
        created=row["created"],
    )


def request_from(row: sqlite3.Row) -> Request:
    """A row of `event` that holds an operator's request."""
    return Request(row["seq"], Wish(row["kind"]), json.loads(row["body"])["reason"])


def event_from(row: sqlite3.Row) -> Event:
    """A row of `event`."""
    return Event(
        seq=row["seq"],
        deployment=row["deployment"],
        rollout=row["rollout"],
        at=row["at"],
        kind=row["kind"],
        body=json.loads(row["body"]),
    )


def served_body(served: Served) -> dict[str, Any]:
    """What the process table keeps of a served revision beside the process itself."""
    return {
        "revision": asdict(served.revision),
        "endpoint": asdict(served.endpoint),
        "log": served.log,
    }


def served_from(process: ProcessRef, body: Mapping[str, Any]) -> Served:
    """The inverse of `served_body`."""
    revision = described(Revision, body["revision"])
    return Served(revision, described(Endpoint, body["endpoint"]), process, body["log"])


def progress_body(progress: Progress) -> dict[str, Any]:
    """All of it, so that who takes over need not fold every tick again."""
    ruling = asdict(progress.ruling) if progress.ruling else None
    plain = {field.name: getattr(progress, field.name) for field in fields(progress)}
    return {**plain, "ruling": ruling, "evidence": asdict(progress.evidence)}


def ended_body(
    rollout: Rollout, outcome: Outcome | None, ruling: Verdict | None, now: float
) -> dict[str, Any]:
    """What the event that closes a rollout says."""
    return {
        "outcome": outcome,
        "verdict": asdict(ruling) if ruling else None,
        "bento": rollout.candidate.bento,
        "digest": rollout.candidate.digest,
        "seconds": now - rollout.created,
        "requests": rollout.progress.evidence.candidate.requests,
    }


def verdict_from(document: Mapping[str, Any]) -> Verdict:
    """The verdict in an event."""
    action, gate = Action(document["action"]), Gate(document["gate"])
    return described(Verdict, {**document, "action": action, "gate": gate})


def _progress_from(document: Mapping[str, Any], rollout: int) -> Progress:
    planned, ruling = document["planned"], document["ruling"]
    # Journals from before kept none: what they saw has to be seen again.
    evidence = _evidence_from(document.get("evidence", {}))
    interrupted = document.get("interrupted")
    converted = {
        "phase": Phase(document["phase"]),
        "interrupted": Phase(interrupted) if interrupted else None,
        "planned": Outcome(planned) if planned else None,
        "ruling": verdict_from(ruling) if ruling else None,
        "evidence": replace(evidence, seed=rollout),
    }
    return described(Progress, {**document, **converted})


def _evidence_from(document: Mapping[str, Any]) -> Evidence:
    """The inverse of `asdict`; what is not there is at its start."""
    kinds: dict[str, Callable[..., Any]] = {
        "candidate": partial(described, Counts),
        "live": partial(described, Counts),
        "shadow": _shadow_from,
    }
    parts = {name: kind(document[name]) for name, kind in kinds.items() if name in document}
    return described(Evidence, {**_tupled(document), **parts})


def _shadow_from(document: Mapping[str, Any]) -> ShadowEvidence:
    total = described(ShadowWindow, document["total"])
    return described(ShadowEvidence, {**_tupled(document), "total": total})


def _tupled(document: Mapping[str, Any]) -> dict[str, Any]:
    """JSON's lists as the tuples that they were."""
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in document.items()
    }
