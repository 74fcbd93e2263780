"""The search for a Bento's settings with the most answers within a latency goal."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mlctl.bundle.manifest import MANIFEST_NAME, parse_manifest
from mlctl.loadtest.figures import Figures
from mlctl.loadtest.naming import folder_of
from mlctl.loadtest.runs import LoadProfile, RequestShape, bench
from mlctl.loadtest.server import serving
from mlctl.services.layout.bento_store import BentoInfo

Settings = Mapping[str, int]

# Two runs of the same settings differ by this share on a machine with other load.
_NOISE = 0.03


@dataclass(frozen=True, slots=True)
class TuningTrial:
    """One server with its settings: its runs, the best of them, and whether that one fits."""

    settings: Settings
    runs: tuple[Figures, ...]
    best: Figures
    fits: bool

    @property
    def environment(self) -> dict[str, str]:
        """The settings as environment variables."""
        return {name: str(value) for name, value in self.settings.items()}

    def beats(self, other: TuningTrial) -> bool:
        """Return whether this is better than `other` by more than the noise.

        Trials that fit are compared by their answers, others by their p99.
        """
        if self.fits != other.fits:
            return self.fits
        if self.fits:
            return gain(self.best) > gain(other.best) * (1 + _NOISE)
        return p99_ms(self.best) < p99_ms(other.best) * (1 - _NOISE)


@dataclass(frozen=True, slots=True)
class Tuned:
    """All trials, and the best one; `max_p99_ms` is the goal."""

    best: TuningTrial
    max_p99_ms: float
    trials: tuple[TuningTrial, ...]

    def environment_lines(self) -> str:
        """Return the settings as lines of NAME=VALUE."""
        return "".join(f"{name}={value}\n" for name, value in self.best.environment.items())

    def as_dict(self) -> dict[str, Any]:
        """Return the search as --json shows it."""
        return {
            "environment": self.best.environment,
            "max_p99_ms": self.max_p99_ms,
            "fits": self.best.fits,
            "trials": [
                {"environment": trial.environment, "runs": [run.as_dict() for run in trial.runs]}
                for trial in self.trials
            ],
        }


def tune(
    bento: BentoInfo,
    shape: RequestShape,
    load: LoadProfile,
    max_p99_ms: float,
    report: Callable[[str], None],
) -> Tuned:
    """Measure a server with each of the settings; `report` gets the progress. Raises as
    `serving` and `bench` do.
    """

    def measure(settings: Settings, number: int) -> TuningTrial:
        shown = ", ".join(f"{name}={value}" for name, value in settings.items())
        report(f"Trial {number}: {shown} ...")
        environment = {name: str(value) for name, value in settings.items()}
        with serving(bento.tag, shape.protocol, environment) as found:
            runs = tuple(bench(found, shape, load)[1])
        best, fits = judge(runs, max_p99_ms)
        return TuningTrial(settings, runs, best, fits)

    manifest = folder_of(bento.source, shape.model) / MANIFEST_NAME
    batching = parse_manifest(manifest.read_bytes()).batching
    max_rows = batching.max_rows if batching.row_independent else 1
    trials = search(len(os.sched_getaffinity(0)), max_rows, measure)
    return Tuned(_best(trials), max_p99_ms, tuple(trials))


def search(
    cores: int, max_rows: int, measure: Callable[[Settings, int], TuningTrial]
) -> list[TuningTrial]:
    """Return the trials: each division of the cores, and then smaller batches while they gain."""
    trials: list[TuningTrial] = []
    for workers, threads in divisions(cores):
        settings = {"MLCTL_WORKERS": workers, "MLCTL_THREADS": threads}
        trials.append(measure(settings, len(trials) + 1))
    best, rows = _best(trials), max_rows // 2
    while rows >= 1:
        trial = measure({**best.settings, "MLCTL_MAX_ROWS": rows}, len(trials) + 1)
        trials.append(trial)
        if not trial.beats(best):
            break
        best, rows = trial, rows // 2
    return trials


def divisions(cores: int) -> Iterator[tuple[int, int]]:
    """Yield numbers of workers and threads, powers of two, that use at most `cores` together."""
    powers = [1 << power for power in range(cores.bit_length())]
    for workers in powers:
        yield from ((workers, threads) for threads in powers if workers * threads <= cores)


def judge(runs: tuple[Figures, ...], max_p99_ms: float) -> tuple[Figures, bool]:
    """Return the best run, and whether it fits.

    In closed loops it is the run within the goal with the most answers. At a fixed rate all runs
    answer as much, so the one with the least CPU per answer is the best.
    """
    fitting = [each for each in runs if not each.failed and p99_ms(each) <= max_p99_ms]
    return (max(fitting, key=gain), True) if fitting else (min(runs, key=p99_ms), False)


def gain(figures: Figures) -> float:
    """Return what is maximized: answers per second, or per CPU second at a fixed rate."""
    return figures.per_second if figures.rate is None else figures.per_cpu_second or 0.0


def p99_ms(figures: Figures) -> float:
    """Return the p99 latency; infinite without an answer."""
    return float("inf") if figures.p99_ms is None else figures.p99_ms


def _best(trials: list[TuningTrial]) -> TuningTrial:
    best, *others = trials
    for trial in others:
        if trial.beats(best):
            best = trial
    return best
