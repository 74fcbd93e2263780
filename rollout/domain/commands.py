"""The commands that a daemon runs by default: a Bento, the alias, the runs in MLflow."""

from __future__ import annotations

import sys


def bento_command() -> tuple[str, ...]:
    """How a Bento is served: `{bento}` and `{port}` are filled in by the launcher."""
    return (
        *(sys.executable, "-m", "bentoml", "serve", "{bento}"),
        *("--host", "127.0.0.1", "--port", "{port}"),
    )


def champion_command() -> tuple[str, ...]:
    """How the alias is written; the revision is given as JSON on standard input."""
    return (sys.executable, "-P", "-m", "rollout.daemon.reporting.alias")


def runs_command() -> tuple[str, ...]:
    """Return the command that reports rollouts to MLflow; the deployment's name is appended."""
    return (sys.executable, "-P", "-m", "rollout.daemon.reporting.runs")
