"""Running mlctl as a user does: another process, its own state directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Mlctl:
    """The command line with all state under `home`; `environment` on top of the process's."""

    home: Path

    @property
    def environment(self) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("MLFLOW_") and name != "BENTOML_HOME"
        }
        return {**kept, "MLCTL_HOME": str(self.home)}

    def run(self, *arguments: str, timeout: float = 180) -> subprocess.CompletedProcess[str]:
        """The finished command, whatever its exit code."""
        return subprocess.run(
            self.command(*arguments),
            env=self.environment,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def command(self, *arguments: str) -> list[str]:
        """The argument list of a command."""
        return [sys.executable, "-m", "cli.main", *arguments]

    def json(self, *arguments: str, timeout: float = 180) -> Any:
        """The document of a command that succeeds."""
        done = self.run(*arguments, "--json", timeout=timeout)
        assert done.returncode == 0, f"{arguments}: {done.stdout}\n{done.stderr}"
        return json.loads(done.stdout)
