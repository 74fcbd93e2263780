"""The journal's rows as values, and their JSON forms."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from rollout import gates
from rollout.counts import Counts, Window
from rollout.gates import Action, Evidence, Gate, Verdict
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
from rollout.ports import Served
from rollout.processes import ProcessRef
from rollout.shadow.window import ShadowWindow
from rollout.wishes import Request, Wish

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
    """One promotion; `colour` is the candidate's. `progress` has no evidence yet: see `events`."""

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
    return json.dumps(document, sort_keys=True, allow_nan=False)


def _settings_from(document: dict[str, Any]) -> Settings:
    target = document.pop("kubernetes", None)
    return Settings(**document, kubernetes=Target(**target) if target else None)


def deployment_from(row: sqlite3.Row) -> Deployment:
    """A row of `deployment`."""
    return Deployment(
        name=row["name"],
        up=bool(row["up"]),
        ports=Ports(**json.loads(row["ports"])),
        settings=_settings_from(json.loads(row["settings"])),
        colour=Colour(row["colour"]),
        live=Revision(**json.loads(row["live"])),
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
        live=Revision(**json.loads(row["live"])),
        candidate=Revision(**json.loads(row["candidate"])),
        spec=RolloutSpec.from_json(row["spec"]),
        progress=_progress_from(json.loads(row["progress"])),
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
    revision, endpoint = Revision(**body["revision"]), Endpoint(**body["endpoint"])
    return Served(revision, endpoint, process, body["log"])


def progress_body(progress: Progress) -> dict[str, Any]:
    """Everything but the evidence, which the tick events hold."""
    names = [field.name for field in fields(progress) if field.name != "evidence"]
    ruling = asdict(progress.ruling) if progress.ruling else None
    return {**{name: getattr(progress, name) for name in names}, "ruling": ruling}


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


def with_evidence(rollout: Rollout, events: Iterable[Event]) -> Progress:
    """The rollout's progress with its evidence folded again from its tick events."""
    evidence = Evidence(seed=rollout.id)
    for event in events:
        if event.kind != TICK:
            continue
        if shadow := event.body.get("shadow"):
            evidence = gates.fold_shadow(evidence, ShadowWindow(**shadow), rollout.spec)
        if event.body["judged"]:
            window = window_from(event.body["window"])
            evidence = gates.fold(evidence, window, rollout.spec)
    return replace(rollout.progress, evidence=evidence)


def window_from(document: Mapping[str, Any]) -> Window:
    """The window in a tick event."""
    counts = Counts(**document["candidate"]), Counts(**document["live"])
    return Window(*counts, fair=document.get("fair", True))


def verdict_from(document: Mapping[str, Any]) -> Verdict:
    """The verdict in an event."""
    action, gate = Action(document["action"]), Gate(document["gate"])
    return Verdict(**{**document, "action": action, "gate": gate})


def _progress_from(document: Mapping[str, Any]) -> Progress:
    planned, ruling = document["planned"], document["ruling"]
    interrupted = document.get("interrupted")
    converted = {
        "phase": Phase(document["phase"]),
        "interrupted": Phase(interrupted) if interrupted else None,
        "planned": Outcome(planned) if planned else None,
        "ruling": verdict_from(ruling) if ruling else None,
    }
    return Progress(**{**document, **converted})
