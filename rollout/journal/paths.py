"""Where deployments keep their state: `$MLCTL_HOME/deployments`."""

from __future__ import annotations

from pathlib import Path

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.home import state_dir


def journal() -> Path:
    """The journal of all deployments."""
    return state_dir("deployments") / "journal.db"


def directory(name: str) -> Path:
    """One deployment's directory, created with its log directory if need be."""
    state_dir("deployments", name, "logs")
    return state_dir("deployments", name)


def lock(name: str) -> Path:
    """The file that its daemon locks for life."""
    return directory(name) / "daemon.lock"


def heartbeat(name: str) -> Path:
    """The file that its daemon touches at each tick."""
    return directory(name) / "heartbeat"


def daemon_log(name: str) -> Path:
    """The daemon's log."""
    return directory(name) / "logs" / "daemon.log"


def require_writable(name: str) -> None:
    """INVALID_INPUT, naming the path, if this user cannot write what a daemon of `name` writes."""
    try:
        logs = (directory(name) / "logs").glob("*.log")
        for path in (lock(name), daemon_log(name), *logs):
            path.open("ab").close()
    except OSError as error:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{error.filename} cannot be written: {error.strerror}",
            "Make it writable for this user, or name another state directory in MLCTL_HOME.",
        ) from error
