"""kill -9 at any point of an optimization: the same command goes on where it was."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from mlctl.core.home import HOME_VARIABLE
from mlctl.optimize.events import Stage, StepEvent, StepStatus
from mlctl.optimize.pipeline import optimize
from mlctl.optimize.recipes.base import Target
from mlctl.optimize.recipes.discovery import select
from mlctl.optimize.variants.goals import Goals, Prefer
from tests.support.dense import dense_source
from tests.support.memory_catalog import MemoryCatalog
from tests.support.sources import save_rows

PROJECT = Path(__file__).parents[2]
GOALS = Goals(prefer=Prefer.SIZE, min_centred_cosine=0.99999)
RECIPES = ["fp32", "fp16", "int8-static"]

# Dies at the event whose number it is given; a table of what it would have been is the log.
_KILLED = """
import os, signal, sys
from pathlib import Path
from mlctl.optimize.pipeline import optimize
from mlctl.optimize.recipes.discovery import select
from mlctl.optimize.recipes.base import Target
from tests.support.memory_catalog import MemoryCatalog
from tests.faults.test_optimize_kill import GOALS, RECIPES
from tests.support.dense import dense_source

class Fuse:
    left = int(sys.argv[1])
    def event(self, event):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

home = Path(os.environ["MLCTL_HOME"])
catalog = MemoryCatalog([dense_source(home / "registered")])
recipes = select(RECIPES, Target.CPU)
optimize("dense", home / "rows.npz", catalog=catalog, goals=GOALS, recipes=recipes, progress=Fuse())
"""


@dataclass
class Recorder:
    events: list[StepEvent] = field(default_factory=list)

    def event(self, event: StepEvent) -> None:
        self.events.append(event)


def prepare(home: Path) -> None:
    home.mkdir()
    rows = np.random.default_rng(0).standard_normal((64, 16), dtype=np.float32)
    save_rows(home / "rows.npz", {"x": rows})


def run(home: Path, patch: pytest.MonkeyPatch) -> tuple[str, list[StepEvent]]:
    patch.setenv(HOME_VARIABLE, str(home))
    recorder = Recorder()
    result = optimize(
        "dense",
        home / "rows.npz",
        catalog=MemoryCatalog([dense_source(home / "registered")]),
        goals=GOALS,
        recipes=select(RECIPES, Target.CPU),
        progress=recorder,
    )
    return result.digest, recorder.events


@pytest.mark.slow
def test_optimize__killed_at_any_point__resumes_with_the_same_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(tmp_path / "whole")
    digest, events = run(tmp_path / "whole", monkeypatch)
    searched = [event for event in events if event.status is StepStatus.WORKING]
    assert {event.detail for event in searched} >= {"sensitivity"}
    points = sorted({3, 5, events.index(searched[-2]) + 1, len(events) - 1})
    for point in points:
        home = tmp_path / f"killed-{point}"
        prepare(home)
        monkeypatch.setenv(HOME_VARIABLE, str(home))
        done = subprocess.run([sys.executable, "-c", _KILLED, str(point)], cwd=PROJECT, check=False)
        assert done.returncode == -signal.SIGKILL
        again, resumed = run(home, monkeypatch)
        assert again == digest
        assert not list(home.glob("cache/optimize/.scratch-*"))
        ended = {(event.stage, event.recipe): event.status for event in resumed}
        if point > 3:
            assert ended[Stage.EXPORT, None] is StepStatus.CACHED
        if events[point - 1] is searched[-2]:
            assert ended[Stage.VARIANT, "fp32"] is StepStatus.CACHED
            assert ended[Stage.VARIANT, "fp16"] is StepStatus.CACHED
            assert sum(event.status is StepStatus.WORKING for event in resumed) < len(searched)
