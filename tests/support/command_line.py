"""Running mlctl as a user does, with its own state directory."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from mlctl.cli.main import cli
from mlctl.examples.digits.story import replaced_environment


@dataclass(frozen=True, slots=True)
class Mlctl:
    """The command line with all state under `home`; `folder`, by default `home`, is current."""

    home: Path
    folder: Path | None = None

    @property
    def environment(self) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("MLFLOW_") and name != "BENTOML_HOME"
        }
        return {**kept, "MLCTL_HOME": str(self.home)}

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command in this process, which has loaded what a new one would have to.

        Return it finished, whatever its exit code. A command that is killed or interrupted needs
        a process of its own: `run_process`, `command`.
        """
        path = sys.path.copy()  # some commands add the current directory
        with replaced_environment(self.environment), contextlib.chdir(self.folder or self.home):
            try:
                result = CliRunner().invoke(cli, arguments, prog_name="mlctl")
            finally:
                sys.path[:] = path
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return subprocess.CompletedProcess(
            arguments, result.exit_code, result.stdout, result.stderr
        )

    def json(self, *arguments: str) -> Any:
        """Return the document of a command that succeeds."""
        return _document(self.run(*arguments, "--json"))

    def run_process(
        self, *arguments: str, timeout: float = 180
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a process of its own; return it finished, whatever its exit code."""
        return subprocess.run(
            self.command(*arguments),
            env=self.environment,
            cwd=self.folder or self.home,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def command(self, *arguments: str) -> list[str]:
        """Return the argument list of a command that runs in a process of its own."""
        return [sys.executable, "-m", "mlctl.cli.main", *arguments]


def _document(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, f"{done.args}: {done.stdout}\n{done.stderr}"
    return json.loads(done.stdout)
