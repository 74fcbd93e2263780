"""Read a pair of sources on behalf of a session, and judge them."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from mlctl.bundle.latency import SERVED_EDGES_MS
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.rollout.domain.interfaces import DataPlaneRejected, DataPlaneUnavailable
from mlctl.rollout.domain.machine.observer import TrafficObserver
from mlctl.rollout.domain.spec import Slot
from mlctl.rollout.domain.statistics.verdict import Action, HoldReason, Verdict
from mlctl.rollout.drivers.kubernetes.meter import PodCounts, SourceMeter
from mlctl.rollout.gate_service import session as sessions
from mlctl.rollout.gate_service.session import GateSession
from mlctl.rollout.gate_service.store import SessionStore, Terms

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,199}")


@dataclass
class _Open:
    """What is kept of a session in memory; it may be lost."""

    observer: TrafficObserver
    lock: threading.Lock = field(default_factory=threading.Lock)


class GateService:
    """The gates over the `sources` that were allowed at the start. Safe to use by many threads."""

    def __init__(self, sources: Mapping[str, PodCounts], store: SessionStore) -> None:
        self._sources = dict(sources)
        self._store = store
        self._open: dict[str, _Open] = {}
        self._lock = threading.Lock()

    def evaluate(self, name: str, terms: Terms, *, weight: int | None, final: bool) -> Verdict:
        """Read the counters once and judge the session `name`; `weight` is the candidate's percent.

        INVALID_INPUT, NOT_FOUND for a source that was not allowed, QUEUE_FULL.
        """
        self._check(name, terms)
        opened = self._opened(name, terms)
        with opened.lock:
            session = self._store.load(name, terms)
            if session.failed is None:
                try:
                    observation, _ = opened.observer.observe(alive=True)
                except (DataPlaneUnavailable, DataPlaneRejected):
                    return Verdict(Action.HOLD, HoldReason.DATA, "the counts could not be read")
                session = sessions.absorb(session, observation, terms.spec, weight)
            verdict = sessions.judge(session, terms.spec, final=final)
            if verdict.action is Action.ROLLBACK:
                session = replace(session, failed=verdict)
            self._keep(name, terms, session, opened)
        return verdict

    def forget(self, name: str) -> None:
        """Drop a session; NOT_FOUND."""
        with self._lock:
            self._open.pop(name, None)
            existed = self._store.forget(name)
        if not existed:
            raise MlctlError(ErrorCode.NOT_FOUND, f"there is no session {name!r}")

    def _check(self, name: str, terms: Terms) -> None:
        if not _ID.fullmatch(name):
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"the session {name!r} is not 1 to 200 letters, digits and . _ : -",
            )
        for source in (terms.blue, terms.green):
            if source not in self._sources:
                names = ", ".join(sorted(self._sources))
                raise MlctlError(
                    ErrorCode.NOT_FOUND, f"no source {source!r} was allowed", f"There are: {names}."
                )
        if terms.blue == terms.green:
            raise MlctlError(ErrorCode.INVALID_INPUT, f"blue and green are both {terms.blue!r}")

    def _opened(self, name: str, terms: Terms) -> _Open:
        """What is kept of the session, made again if it expired. INVALID_INPUT, QUEUE_FULL."""
        with self._lock:
            stored = self._store.names()
            self._open = {each: kept for each, kept in self._open.items() if each in stored}
            self._store.load(name, terms)  # rejects before anything is opened
            if name not in self._open:
                pair = {Slot.BLUE: terms.blue, Slot.GREEN: terms.green}
                meter = SourceMeter({c: self._sources[each] for c, each in pair.items()})
                observer = TrafficObserver(meter, SERVED_EDGES_MS, Slot.GREEN, terms.spec)
                self._open[name] = _Open(observer)
            return self._open[name]

    def _keep(self, name: str, terms: Terms, session: GateSession, opened: _Open) -> None:
        """Save what was found, unless the session was forgotten meanwhile."""
        with self._lock:
            if self._open.get(name) is opened:
                self._store.save(name, terms, session)
