"""The search for a Bento's settings with real servers; an interrupted search resumes."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bundle.clock import Clock, SystemClock
from bundle.home import state_dir
from bundle.manifest import MANIFEST_NAME, parse_manifest
from loadtest.figures import Figures
from loadtest.naming import folder_of
from loadtest.runs import LoadProfile, RequestShape, bench
from loadtest.search import Knob, Score, Values, search
from loadtest.server import serving
from services.runtime.bento_store import BentoInfo

_VARIABLES = {
    "threads": "MLCTL_THREADS",
    "workers": "MLCTL_WORKERS",
    "max_rows": "MLCTL_MAX_ROWS",
}


@dataclass(frozen=True, slots=True)
class Goal:
    """The p99 limit in milliseconds, and the seconds after which no trial starts."""

    max_p99_ms: float
    budget: float


@dataclass(frozen=True, slots=True)
class TuningTrial:
    """One server with its settings: its runs, the best of them, and the score of that one."""

    environment: Mapping[str, str]
    runs: tuple[Figures, ...]
    best: Figures
    score: Score


@dataclass(frozen=True, slots=True)
class Tuned:
    """The best settings; `fits` says whether they reach the goal."""

    environment: Mapping[str, str]
    max_p99_ms: float
    fits: bool
    complete: bool
    trials: tuple[TuningTrial, ...]

    def environment_lines(self) -> str:
        """Return the settings as lines of NAME=VALUE."""
        return "".join(f"{name}={value}\n" for name, value in self.environment.items())

    def as_dict(self) -> dict[str, Any]:
        """Return the search as --json shows it."""
        return {
            "environment": dict(self.environment),
            "max_p99_ms": self.max_p99_ms,
            "fits": self.fits,
            "complete": self.complete,
            "trials": [
                {"environment": dict(trial.environment), "runs": [r.as_dict() for r in trial.runs]}
                for trial in self.trials
            ],
        }


class Tuning:
    """One search; `ports` returns two free ports for each server, `report` gets the progress."""

    def __init__(
        self,
        bento: BentoInfo,
        shape: RequestShape,
        load: LoadProfile,
        goal: Goal,
        ports: Callable[[], tuple[int, int]],
        report: Callable[[str], None],
        *,
        cores: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._bento = bento
        self._shape = shape
        self._load = load
        self._goal = goal
        self._ports = ports
        self._report = report
        self._cores = cores or len(os.sched_getaffinity(0))
        self._clock = clock or SystemClock()
        self._trials: list[TuningTrial] = []
        self._trial_log = _TrialLog(self._key())

    def run(self) -> Tuned:
        """Search; an error of `serving` or `bench` ends it, and the next run resumes it."""
        end = self._clock.monotonic() + self._goal.budget
        found = search(self._knobs(), self._try, lambda: self._clock.monotonic() < end)
        if found.complete:
            self._trial_log.clear()
        return Tuned(
            environment=environment_of(found.values),
            max_p99_ms=self._goal.max_p99_ms,
            fits=found.score.fits,
            complete=found.complete,
            trials=tuple(self._trials),
        )

    def _knobs(self) -> list[Knob]:
        manifest = folder_of(self._bento.source, self._shape.model) / MANIFEST_NAME
        batching = parse_manifest(manifest.read_bytes()).batching
        processors = _doubling(self._cores)
        knobs = [Knob("threads", processors, 1), Knob("workers", processors, 1)]
        if batching.row_independent and batching.max_rows > 1:
            knobs.append(Knob("max_rows", _doubling(batching.max_rows), batching.max_rows))
        return knobs

    def _try(self, values: Values) -> Score:
        environment = environment_of(values)
        runs = self._trial_log.find(environment)
        if runs is None:
            shown = ", ".join(f"{name} {value:g}" for name, value in values.items())
            self._report(f"Trial {len(self._trials) + 1}: {shown} ...")
            runs = self._measure(environment)
            self._trial_log.add(environment, runs)
        best, score = judge(runs, self._goal.max_p99_ms)
        self._trials.append(TuningTrial(environment, runs, best, score))
        return score

    def _measure(self, environment: Mapping[str, str]) -> tuple[Figures, ...]:
        with (
            tempfile.TemporaryDirectory(prefix="mlctl-tune-") as folder,
            serving(
                self._bento.tag,
                self._ports(),
                self._shape.protocol,
                Path(folder) / "log",
                environment,
            ) as served,
        ):
            return tuple(bench(served, self._shape, self._load)[1])

    def _key(self) -> str:
        """Return a hash of everything that a trial depends on besides its settings."""
        parts = (
            self._bento.tag, asdict(self._shape), asdict(self._load), self._goal.max_p99_ms,
            self._cores,
        )  # fmt: skip
        return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()[:16]


def environment_of(values: Values) -> dict[str, str]:
    """Return the settings as environment variables."""
    return {_VARIABLES[name]: f"{value:g}" for name, value in values.items()}


def judge(runs: tuple[Figures, ...], max_p99_ms: float) -> tuple[Figures, Score]:
    """Return the best run and its score.

    In closed loops it is the run within the goal with the most answers. At a fixed rate all runs
    answer as much, so the one with the least CPU per answer is the best.
    """

    def fits(figures: Figures) -> bool:
        return not figures.failed and p99(figures) <= max_p99_ms

    def gain(figures: Figures) -> float:
        return figures.per_second if figures.rate is None else figures.per_cpu_second or 0.0

    def p99(figures: Figures) -> float:
        return float("inf") if figures.p99_ms is None else figures.p99_ms

    fitting = [figures for figures in runs if fits(figures)]
    best = max(fitting, key=gain) if fitting else min(runs, key=p99)
    return best, Score(bool(fitting), gain(best), p99(best))


def _doubling(limit: int) -> tuple[float, ...]:
    """Return 1, 2, 4 and so on up to `limit`, which is the last."""
    found = [1.0]
    while found[-1] * 2 < limit:
        found.append(found[-1] * 2)
    return tuple(found) if limit == 1 else (*found, float(limit))


class _TrialLog:
    """The trials of an unfinished search, one JSON line each."""

    def __init__(self, key: str) -> None:
        self._path = state_dir("cache", "tune") / f"{key}.jsonl"

    def find(self, environment: Mapping[str, str]) -> tuple[Figures, ...] | None:
        """Return the runs with these settings, or None."""
        if not self._path.is_file():
            return None
        for line in self._path.read_text().splitlines():
            try:
                document = json.loads(line)
            except ValueError:
                continue  # the line that was being written when the search was killed
            if document["environment"] == environment:
                return tuple(Figures(**run) for run in document["runs"])
        return None

    def add(self, environment: Mapping[str, str], runs: tuple[Figures, ...]) -> None:
        """Append a trial."""
        document = {"environment": environment, "runs": [run.as_dict() for run in runs]}
        with self._path.open("a") as file:
            file.write(json.dumps(document) + "\n")

    def clear(self) -> None:
        """Delete the trials of a finished search."""
        self._path.unlink(missing_ok=True)
