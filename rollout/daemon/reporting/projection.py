"""Report rollouts to MLflow as runs: a projection of the journal that may lag, and catches up.

How far it is stands in the journal, written after MLflow accepted it. What was accepted and not
recorded is written again, and MLflow keeps it once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol
from urllib.parse import urlsplit, urlunsplit

from mlctl.core.errors import MlctlError
from mlctl.registry.runs import MetricSample, RunRef
from mlctl.rollout.daemon.reporting.notices import reason
from mlctl.rollout.daemon.reporting.series import Series, SeriesPoint
from mlctl.rollout.domain.spec import Outcome
from mlctl.rollout.journal.journal import Journal
from mlctl.rollout.journal.records import ENDED, Delivery, JournalEvent, run_sink

_PAGE = 1000

# A run ended by a verdict for or against, or without one.
_STATUS = {
    Outcome.PROMOTED: "FINISHED",
    Outcome.RESTORED: "FINISHED",
    Outcome.ROLLED_BACK: "FAILED",
    Outcome.INCONCLUSIVE: "KILLED",
}


class Runs(Protocol):
    """The store of runs; MlctlError when it fails. Every call may be repeated."""

    def open(self, key: str, name: str, begun: float, tags: Mapping[str, str]) -> RunRef: ...

    def log(self, ref: RunRef, samples: Sequence[MetricSample]) -> None: ...

    def close(self, ref: RunRef, status: str, ended: float, tags: Mapping[str, str]) -> None: ...


@dataclass(frozen=True, slots=True)
class RunLink:
    """Where a rollout's run is. `url` is None for a registry without a web address of its own.

    `error` is why reporting fails at present.
    """

    experiment: str | None
    run: str | None
    url: str | None
    closed: bool
    error: str | None


class Projection:
    """Reports all rollouts of the deployment `name`."""

    def __init__(self, name: str, journal: Journal, runs: Runs) -> None:
        self._name = name
        self._journal = journal
        self._runs = runs
        self._open: dict[int, _Run] = {}

    def advance(self) -> bool:
        """Report what is new; return whether a rollout under way will have more.

        MlctlError if the registry fails; `mlctl status` shows why.
        """
        for rollout in self._journal.unreported(self._name):
            run = self._open.get(rollout) or _Run(rollout, self._journal, self._runs)
            self._open[rollout] = run
            try:
                run.advance()
            except MlctlError as error:
                run.note(error.message)
                raise
        self._open = {each: run for each, run in self._open.items() if not run.closed}
        return bool(self._open)


class _Run:
    """The report of one rollout as a run."""

    def __init__(self, rollout_id: int, journal: Journal, runs: Runs) -> None:
        self._rollout = rollout = journal.rollout(rollout_id)
        self._journal = journal
        self._runs = runs
        self._sink = run_sink(rollout.id)
        self._cursor = journal.delivery(rollout.deployment, self._sink)
        self._series = Series(rollout)
        self._ref: RunRef | None = None
        self._waiting: list[SeriesPoint] = []
        self._ended: JournalEvent | None = None
        self._read = 0
        self.closed = False

    def advance(self) -> None:
        """Report what is new. A new process reads all of a long rollout again, in pages."""
        name, rollout = self._rollout.deployment, self._rollout.id
        while page := self._journal.events(name, self._read, rollout, limit=_PAGE):
            for event in page:
                self._take(event)
        if self._ref is None:
            self._ref = self._runs.open(*self._begin())
        if self._waiting:
            samples = [sample for point in self._waiting for sample in _samples(point)]
            self._runs.log(self._ref, samples)
            self._put(self._waiting[-1].seq)
            self._waiting = []
        elif not self._cursor.body.get("run") or self._cursor.error:
            self._put(self._cursor.seq)
        if self._ended is not None:
            self._close(self._ref, self._ended)

    def note(self, error: str) -> None:
        failed = replace(self._cursor, error=error)
        self._journal.put_delivery(self._rollout.deployment, self._sink, failed)

    def _take(self, event: JournalEvent) -> None:
        self._read = event.seq
        point = self._series.add(event)
        if event.kind == ENDED:
            self._ended = event
            self._keep(point)
            point = self._series.end()
        self._keep(point)

    def _keep(self, point: SeriesPoint | None) -> None:
        if point is not None and point.seq > self._cursor.seq:
            self._waiting.append(point)

    def _begin(self) -> tuple[str, str, float, dict[str, str]]:
        rollout = self._rollout
        # Another journal has a rollout of that number too, but not begun in the same microsecond.
        key = f"{rollout.deployment}-{rollout.id}-{int(rollout.created * 1e6)}"
        tags = {
            "mlctl.deployment": rollout.deployment,
            "mlctl.rollout": str(rollout.id),
            "mlctl.from": rollout.live.bento,
            "mlctl.from_digest": rollout.live.digest,
            "mlctl.to": rollout.candidate.bento,
            "mlctl.to_digest": rollout.candidate.digest,
            "mlctl.spec": replace(rollout.spec, notifications=()).to_json(),
        }
        name = f"{rollout.deployment} {rollout.id}: {rollout.candidate.bento}"
        return key, name, rollout.created, tags

    def _close(self, ref: RunRef, ended: JournalEvent) -> None:
        outcome, verdict = Outcome(ended.body["outcome"]), ended.body["verdict"]
        tags = {"mlctl.outcome": outcome.value}
        if verdict:
            tags |= {"mlctl.verdict": verdict["gate"], "mlctl.why": reason(verdict)}
        self._runs.close(ref, _STATUS[outcome], ended.at, tags)
        self._put(ended.seq, closed=True)
        self.closed = True

    def _put(self, seq: int, *, closed: bool = False) -> None:
        assert self._ref is not None
        body = {"experiment": self._ref.experiment, "run": self._ref.run, "closed": closed}
        self._cursor = Delivery(seq, body=body)
        self._journal.put_delivery(self._rollout.deployment, self._sink, self._cursor)


def link(delivery: Delivery, tracking_uri: str | None) -> RunLink | None:
    """Return where the run of that delivery is; None before the first attempt."""
    body = delivery.body
    if not body and delivery.error is None:
        return None
    experiment, run = body.get("experiment"), body.get("run")
    base = _web_address(tracking_uri or "")
    url = f"{base}/#/experiments/{experiment}/runs/{run}" if base and run else None
    return RunLink(experiment, run, url, bool(body.get("closed")), delivery.error)


def _web_address(uri: str) -> str | None:
    """A tracking server's address without what may be a password; None for other stores."""
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https"):
        return None
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))


def _samples(point: SeriesPoint) -> list[MetricSample]:
    return [
        MetricSample(name, value, point.at, int(point.age)) for name, value in point.values.items()
    ]
