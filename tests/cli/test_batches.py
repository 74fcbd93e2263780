"""Ctrl-C of a job: heard at any moment, also while what prints is still being imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.wait import PATIENCE_SECONDS

_SCRIPT = """
import signal, sys
from mlctl.cli.progress import stopping
from mlctl.cli.output import CommandOutput

class Interrupt:  # the signal comes in the middle of an import, when half of rich is there
    def find_spec(self, name, path=None, target=None):
        if name == "rich.text":
            sys.meta_path.remove(self)
            signal.raise_signal(signal.SIGINT)

output = CommandOutput(as_json="--json" in sys.argv)
with stopping(output) as stop:
    sys.meta_path.insert(0, Interrupt())
    assert not stop.is_set()
    output.stderr.print("begun")
    assert stop.is_set()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("option", "told"), [((), True), (("--json",), False)])
def test_batch__ctrl_c_during_imports__stops_in_order(option: tuple[str, ...], told: bool) -> None:
    command = [sys.executable, "-c", _SCRIPT, *option]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert done.returncode == 0, done.stderr
    assert ("Stopping after the work in progress is committed" in done.stderr) is told
    assert "begun" in done.stderr
