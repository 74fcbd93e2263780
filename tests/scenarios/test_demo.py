"""The demo is the product's promise: it runs from a fresh directory, and its numbers hold."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from mlctl.bento.packaging import BuiltBento
from tests.support.command_line import Mlctl
from tests.support.wait import wait_until
from tests.test_architecture import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.serial, pytest.mark.timeout(1000)]


def is_orphan(process: psutil.Process) -> bool:
    """Whether a process belongs to a demo whose directory is gone: one that has ended."""
    try:
        home = re.search(r"/\S*/mlctl-demo-[^/\s]+", " ".join(process.cmdline()))
    except psutil.Error:
        return False
    return home is not None and not Path(home[0]).exists()


def test_demo__from_an_empty_folder__promotes_and_rolls_back(tmp_path: Path) -> None:
    done = Mlctl(tmp_path).run_process("demo", "--json", timeout=960)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(done.stdout)

    for variants in summary["variants"].values():
        assert [each["recipe"] for each in variants] == [
            "fp32",
            "fp16",
            "int8-static",
            "int8-dynamic",
            "int4",
        ]
        assert sum(each["chosen"] for each in variants) == 1
        assert all(each["measured"]["score"]["value"] > 0.9 for each in variants)

    phases = {phase["name"]: phase for phase in summary["phases"]}
    assert all(phase["sent"] > 0 for phase in phases.values())
    # The proof before the last step alone needs hundreds of answers of the candidate.
    assert phases["promotion of the better version"]["sent"] > 500
    broken = phases.pop("promotion of the broken version")
    # Only the broken version's own share may have failed, and only until it was caught.
    assert 0 < broken["failed"] < broken["sent"] * 0.1
    assert {phase["failed"] for phase in phases.values()} == {0}

    assert summary["champion"] == "models:/digits-optimized/2"
    rollback = summary["rollback"]
    assert rollback["outcome"] == "rolled_back"
    assert "errors" in rollback["verdict"]["gate"]
    assert rollback["verdict"]["n"] > 0
    assert rollback["restored"] - rollback["exposed"] < 30

    left = [process.pid for process in psutil.process_iter() if is_orphan(process)]
    assert left == []
    assert list(tmp_path.iterdir()) == []


# The demo with a Bento that exists already, because only its deployment matters.
BUILT_DEMO = """
import shutil, sys
from mlctl.cli.main import main
from mlctl.examples.digits.story import Story

store, tag = sys.argv.pop(), sys.argv.pop()

def copied(story, name, chapter=None):
    shutil.copytree(store, story.home / "bentoml")
    return tag

Story._train = lambda story, recipe: None
Story._optimize_and_build = copied
main()
"""


def test_demo__sigterm_while_it_deploys__leaves_nothing(
    tmp_path: Path, built: BuiltBento, store_home: Path
) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "120"}
    command = [sys.executable, "-c", BUILT_DEMO, "demo", built.tag, str(store_home)]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    ) as demo:
        assert demo.stderr is not None
        for line in demo.stderr:
            if line.startswith("$ mlctl up"):
                break
        journal = next(tmp_path.glob("mlctl-demo-*")) / "deployments" / "journal.db"
        wait_until(journal.exists, what="the deployment is recorded")
        demo.send_signal(signal.SIGTERM)
        demo.stderr.read()
    assert demo.returncode != 0
    wait_until(lambda: not any(map(is_orphan, psutil.process_iter())), what="all have ended")
    assert list(tmp_path.glob("mlctl-demo-*")) == []
