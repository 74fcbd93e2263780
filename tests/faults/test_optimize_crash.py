"""A crash of native code during an optimization costs the variant at fault, and not the run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from mlctl.core.home import HOME_VARIABLE
from mlctl.optimize.events import Stage
from tests.faults.test_optimize_kill import PROJECT, prepare
from tests.support.wait import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.slow

# Crashes at the start of a step, as a library would in it; prints the variants, or the error.
_CRASHES = """
import json, os, signal, sys
from pathlib import Path
from mlctl.core.errors import MlctlError
from mlctl.optimize.supervision import run_in_child, this_process

stage, recipe, number = sys.argv[1], sys.argv[2] or None, int(sys.argv[3])
try:
    run_in_child(lambda text: print(text, file=sys.stderr), step_seconds=1.0 if not number else 1e4)
except MlctlError as error:
    print(json.dumps(error.as_dict()))
    sys.exit(error.spec.exit_code)

from mlctl.optimize.pipeline import optimize
from mlctl.optimize.recipes.base import Target
from mlctl.optimize.recipes.discovery import select
from tests.faults.test_optimize_kill import GOALS
from tests.support.dense import dense_source
from tests.support.memory_catalog import MemoryCatalog

child = this_process()

class Fault:
    def event(self, event):
        if event.status == "started" and (event.stage, event.recipe) == (stage, recipe):
            if recipe not in child.crashed:
                print("at the fault", os.getpid(), file=sys.stderr, flush=True)
                os.kill(os.getpid(), number) if number else signal.pause()

home = Path(os.environ["MLCTL_HOME"])
catalog = MemoryCatalog([dense_source(home / "registered")])
result = optimize(
    "dense", home / "rows.npz", catalog=catalog, goals=GOALS, crashed=child.crashed,
    recipes=select(["fp32", "fp16"], Target.CPU), progress=child.watched(Fault()),
)
print(json.dumps({each.variant.recipe: each.variant.failure for each in result.judged}))
"""


def start(home: Path, stage: str, recipe: str, number: int) -> subprocess.Popen[str]:
    prepare(home)
    return subprocess.Popen(
        [sys.executable, "-c", _CRASHES, stage, recipe, str(number)],
        cwd=PROJECT,
        env={**os.environ, HOME_VARIABLE: str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("stage", "number", "reason"),
    [
        (Stage.VARIANT, signal.SIGSEGV, "its process died of SIGSEGV"),
        (Stage.LATENCY, signal.SIGABRT, "its process died of SIGABRT"),
        (Stage.VARIANT, signal.SIGKILL, "its process died of SIGKILL (out of memory?)"),
        (Stage.VARIANT, 0, "its process stood still for 1 s"),
    ],
    ids=["segfault", "timing", "memory", "hang"],
)
def test_optimize__variant_ends_its_process__is_rejected_with_the_reason(
    tmp_path: Path, stage: Stage, number: int, reason: str
) -> None:
    with start(tmp_path / "home", stage, "fp16", number) as run:
        output, errors = run.communicate(timeout=PATIENCE_SECONDS)
    assert run.returncode == 0, errors
    assert json.loads(output) == {"fp32": None, "fp16": reason}
    assert f"fp16: {reason}; continuing without it" in errors


def test_optimize__export_ends_its_process__is_an_error(tmp_path: Path) -> None:
    with start(tmp_path / "home", Stage.EXPORT, "", signal.SIGSEGV) as run:
        output, errors = run.communicate(timeout=PATIENCE_SECONDS)
    found = json.loads(output)
    assert (run.returncode, found["code"]) == (4, "unsupported_model"), errors
    assert "died of SIGSEGV" in found["message"]


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=["kill", "term", "interrupt"]
)
def test_optimize__told_to_end__ends_with_its_child(tmp_path: Path, number: signal.Signals) -> None:
    # A hang that nobody ends.
    with start(tmp_path / "home", Stage.VARIANT, "fp16", signal.SIGSTOP) as run:
        assert run.stderr is not None
        child = psutil.Process(int(run.stderr.readline().split()[-1]))
        wait_until(lambda: child.status() == psutil.STATUS_STOPPED)
        run.send_signal(number)
        if number is not signal.SIGKILL:
            child.send_signal(signal.SIGCONT)
        assert run.wait(PATIENCE_SECONDS) == -number
        wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
