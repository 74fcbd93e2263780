"""The twins of proxy, processes and clock with their state in a file, as real ones have it.

A process that is killed at any point leaves behind what it had done until then, and the next
one finds it. `Points` names every point at which a daemon can be killed, from the calls and the
SQL that it really makes, so a new effect is a new point.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mlctl.rollout.domain.interfaces import ProcessState
from mlctl.rollout.domain.spec import Endpoint, Slot
from mlctl.rollout.domain.traffic.counts import Totals
from mlctl.rollout.journal.journal import Journal
from tests.support.memory import MemoryDataPlane, MemoryLauncher

EDGES = (100.0,)
EFFECTS = frozenset(
    {"apply", "connect", "start", "stop", "save", "put_process", "drop_process", "request"}
)
# A kill before one of these leaves what a kill before the next statement leaves.
_CHANGES_NOTHING = ("select", "pragma", "begin")


@dataclass
class DiskWorld:
    """Plane, launcher and clock, loaded from `path`; every effect on them is written at once."""

    path: Path
    now: float = 1000.0
    data_plane: MemoryDataPlane = field(default_factory=lambda: MemoryDataPlane(EDGES))
    launcher: MemoryLauncher = field(default_factory=MemoryLauncher)

    def __post_init__(self) -> None:
        self.launcher.now = self.wall
        if self.path.exists():
            self._load(json.loads(self.path.read_text()))

    def thread(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    def write(self) -> None:
        data_plane, launcher = self.data_plane, self.launcher
        document = {
            "now": self.now,
            "weights": data_plane.weights,
            "history": data_plane.history,
            "endpoints": {c: [asdict(e) for e in es] for c, es in data_plane.endpoints.items()},
            "totals": {slot: asdict(totals) for slot, totals in data_plane.totals.items()},
            "probes": launcher.probes,
            "slots": launcher.slots,
            "roles": launcher.roles,
            "apart": launcher.apart,
            "started": len(launcher.started),
        }
        # A killed process loses nothing that it wrote, so nothing has to reach the disk.
        scratch = self.path.with_suffix(".new")
        scratch.write_text(json.dumps(document))
        scratch.replace(self.path)

    def _load(self, document: dict[str, Any]) -> None:
        self.now = document["now"]
        data_plane, launcher = self.data_plane, self.launcher
        data_plane.weights = {Slot(c): weight for c, weight in document["weights"].items()}
        data_plane.history = document["history"]
        data_plane.endpoints = {
            Slot(c): tuple(Endpoint(**e) for e in es) for c, es in document["endpoints"].items()
        }
        data_plane.totals = {
            Slot(c): Totals(**{**totals, "within": tuple(totals["within"])})
            for c, totals in document["totals"].items()
        }
        launcher.probes = {Slot(c): ProcessState(probe) for c, probe in document["probes"].items()}
        launcher.slots = {token: Slot(c) for token, c in document["slots"].items()}
        launcher.roles = document["roles"]
        launcher.apart = {role: ProcessState(probe) for role, probe in document["apart"].items()}
        launcher.started = [None] * document["started"]  # type: ignore[list-item]  # only counted


@dataclass
class Points:
    """Counts the points that are passed, and dies by SIGKILL at number `kill_at`."""

    kill_at: int = 0
    passed: list[str] = field(default_factory=list)

    def reach(self, label: str) -> None:
        self.passed.append(label)
        if len(self.passed) == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch_sql(self, journal: Journal) -> None:
        """Make a point of every statement that writes, before it is carried out."""

        def reached(statement: str) -> None:
            word = statement.split(maxsplit=1)[0].lower()
            if word not in _CHANGES_NOTHING:
                self.reach(f"sql {word}")

        journal._db.execute("pragma synchronous = off")  # as above
        journal._db.set_trace_callback(reached)


@dataclass
class Fragile:
    """Passes everything on to `target`; a point lies before each of its effects.

    Nothing happens between an effect and the point before the next one.
    """

    target: Any
    points: Points
    after: Callable[[], None]

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.target, name)
        return self._pointed(name, value) if name in EFFECTS else value

    def _pointed(self, name: str, effect: Callable[..., Any]) -> Callable[..., Any]:
        def pointed(*args: Any, **kwargs: Any) -> Any:
            self.points.reach(f"before {name}")
            result = effect(*args, **kwargs)
            self.after()
            return result

        return pointed
