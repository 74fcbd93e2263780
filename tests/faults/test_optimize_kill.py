"""kill -9 in the middle of an optimization: the same command goes on where it was."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from bundle.home import HOME_VARIABLE
from optimize.events import Event, Stage, Status
from optimize.pipeline import optimize
from registry.memory import MemoryCatalog
from tests.support.sources import onnx_source, save_rows

PROJECT = Path(__file__).parents[2]

_KILLED_IN_THE_SECOND_RECIPE = """
import os, signal
from dataclasses import dataclass
from pathlib import Path
from optimize.pipeline import optimize
from optimize.recipes import RECIPES
from registry.memory import MemoryCatalog
from tests.support.sources import onnx_source

@dataclass(frozen=True)
class Killed:
    name: str = "fp16"
    precision: str = "fp16"
    version: int = 1
    def build(self, source, directory, calibration):
        (directory / "model.onnx").write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGKILL)

home = Path(os.environ["MLCTL_HOME"])
catalog = MemoryCatalog([onnx_source(home / "registered")])
optimize("tiny", home / "rows.npz", catalog=catalog, recipes=(RECIPES[0], Killed()))
"""


@dataclass
class Recorder:
    events: list[Event] = field(default_factory=list)

    def event(self, event: Event) -> None:
        self.events.append(event)


@pytest.mark.slow
def test_a_killed_run_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    rows = np.random.default_rng(0).random((32, 4), dtype=np.float32)
    data = save_rows(tmp_path / "rows.npz", {"x": rows})
    done = subprocess.run(
        [sys.executable, "-c", _KILLED_IN_THE_SECOND_RECIPE], cwd=PROJECT, check=False
    )
    assert done.returncode == -signal.SIGKILL

    catalog = MemoryCatalog([onnx_source(tmp_path / "registered")])
    recorder = Recorder()
    result = optimize("tiny", data, catalog=catalog, progress=recorder)
    ended = {
        event.recipe or event.stage: event.status
        for event in recorder.events
        if event.stage in (Stage.EXPORT, Stage.VARIANT)
    }
    assert ended == {
        Stage.EXPORT: Status.CACHED,
        "fp32": Status.CACHED,
        "fp16": Status.FINISHED,
        "int8-cpu": Status.FAILED,
    }
    assert [model.digest for model in catalog.published] == [result.digest]
