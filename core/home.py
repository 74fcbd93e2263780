"""Local state: everything is under `$MLCTL_HOME`, nothing in the current directory."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_data_path

HOME_VARIABLE = "MLCTL_HOME"
BENTO_HOME_VARIABLE = "BENTOML_HOME"


def home_path() -> Path:
    """Return the absolute path of the state directory, whether it exists or not."""
    configured = os.environ.get(HOME_VARIABLE)
    home = Path(configured).expanduser() if configured else user_data_path("mlctl")
    return home.absolute()


def mlctl_home() -> Path:
    """Return the absolute state directory; create it (mode 0700) if it does not exist."""
    home = home_path()
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    return home


def state_dir(*parts: str) -> Path:
    """Return a directory under the state directory; create it if it does not exist."""
    path = mlctl_home().joinpath(*parts)
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def bento_home() -> Path:
    """Return the Bento store: $BENTOML_HOME, by default a directory under the state directory."""
    configured = os.environ.get(BENTO_HOME_VARIABLE)
    if not configured:
        return state_dir("bentoml")
    home = Path(configured).expanduser().absolute()
    home.mkdir(parents=True, exist_ok=True)
    return home


def bento_environment() -> dict[str, str]:
    """Return additional environment variables for a process that builds or serves a Bento.

    They make it use the Bento's packages and bundle, not those of the current directory or of
    MLCTL_BUNDLE (empty counts as unset), and turn off usage reports of libraries.
    """
    return {
        BENTO_HOME_VARIABLE: str(bento_home()),
        "BENTOML_DO_NOT_TRACK": "True",
        "MLCTL_BUNDLE": "",
        "ORT_DISABLE_TELEMETRY": "1",
        "PYTHONSAFEPATH": "1",
    }
