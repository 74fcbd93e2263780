"""The journal's rows as values, and their JSON forms."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from pydantic import TypeAdapter

from mlctl.rollout.domain.interfaces import RunningRevision
from mlctl.rollout.domain.machine.state_machine import RolloutProgress
from mlctl.rollout.domain.operator_commands import OperatorCommand, OperatorRequest
from mlctl.rollout.domain.process_ref import ProcessRef
from mlctl.rollout.domain.spec import (
    DeploymentSettings,
    Outcome,
    Ports,
    PreviousRevision,
    Revision,
    RolloutSpec,
    Slot,
)
from mlctl.rollout.domain.statistics.verdict import Verdict
from mlctl.rollout.domain.traffic.split import Split

T = TypeVar("T")
_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}

# The columns that hold JSON.
_DOCUMENTS = frozenset(
    ("ports", "settings", "live", "previous", "split", "candidate", "spec", "progress", "body")
)

TICK = "tick"
ENDED = "ended"


def run_sink(rollout: int | str) -> str:
    """Return the name under which a rollout's MLflow run is delivered."""
    return f"run:{rollout}"


@dataclass(frozen=True, slots=True)
class Deployment:
    """A deployment: which slot is live with which revision, and where it listens.

    `previous` is what `rollback` returns to, None without a promotion to take back. `split` is the
    lasting split of its traffic, None if all of it goes to the live slot. `champion` is
    the digest last written to the registry; `epoch` is its daemon's.
    """

    name: str
    up: bool
    ports: Ports
    settings: DeploymentSettings
    slot: Slot
    live: Revision
    previous: PreviousRevision | None
    split: Split | None
    champion: str | None
    epoch: int
    created: float


@dataclass(frozen=True, slots=True)
class Rollout:
    """One promotion, or the return to the previous version; `slot` is the candidate's.

    `reverts` is the id of the promotion that a return takes back, None for a promotion.
    """

    id: int
    deployment: str
    slot: Slot
    live: Revision
    candidate: Revision
    spec: RolloutSpec
    progress: RolloutProgress
    outcome: Outcome | None
    created: float
    reverts: int | None = None


@dataclass(frozen=True, slots=True)
class Delivery:
    """How far a sink of the outbox is with the events of a deployment.

    `seq` is the last event that it has delivered, `failures` in a row led to `error`, and nothing
    is tried again before `not_before` (wall-clock seconds). `body` is what the sink keeps.
    """

    seq: int = 0
    failures: int = 0
    error: str | None = None
    not_before: float = 0.0
    body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JournalEvent:
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


def value_from(kind: type[T], document: Any) -> T:
    """Return the value of `kind` that `dumps` wrote, from its parsed JSON."""
    adapter = _ADAPTERS.get(kind)
    if adapter is None:  # made at the first use: most commands need two of them
        adapter = _ADAPTERS[kind] = TypeAdapter(kind)
    value: T = adapter.validate_python(document)
    return value


def from_row(kind: type[T], row: sqlite3.Row) -> T:
    """Return a row of the table of `kind` as a value, with the JSON in its columns parsed."""
    document = dict(row)
    for name in _DOCUMENTS & document.keys():
        if document[name] is not None:
            document[name] = json.loads(document[name])
    return value_from(kind, document)


def request_from(row: sqlite3.Row) -> OperatorRequest:
    """A row of `event` that holds an operator's request."""
    return OperatorRequest(
        row["seq"], OperatorCommand(row["kind"]), json.loads(row["body"])["reason"]
    )


def served_body(served: RunningRevision) -> dict[str, Any]:
    """What the process table keeps of a served revision beside the process itself."""
    body = asdict(served)
    del body["process"]
    return body


def served_from(process: ProcessRef, body: Mapping[str, Any]) -> RunningRevision:
    """The inverse of `served_body`."""
    return value_from(RunningRevision, {**body, "process": process})


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
