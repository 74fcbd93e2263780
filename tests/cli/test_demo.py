"""`mlctl demo` cleans up whatever signals arrive; what it shows is in tests/scenarios."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from mlctl.cli.main import cli


@pytest.mark.parametrize("fails", [False, True])
def test_demo__signals_while_it_cleans_up__removes_its_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, fails: bool
) -> None:
    class InterruptedStory:
        def __init__(self, home: Path, *_: object) -> None:
            self.home = home

        def run(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

        def stop(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)
            if fails:
                raise OSError("the deployment does not stop")

    monkeypatch.setattr("mlctl.examples.digits.story.Story", InterruptedStory)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    result = CliRunner().invoke(cli, ["demo"])
    assert result.exit_code == (1 if fails else 130), result.output
    assert list(tmp_path.iterdir()) == []
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == handlers
