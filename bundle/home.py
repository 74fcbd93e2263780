"""Where local state lives: everything under `$MLCTL_HOME`, nothing in the current directory."""

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
    """The absolute state directory, created (mode 0700) if it does not exist yet."""
    home = home_path()
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    return home


def state_dir(*parts: str) -> Path:
    """A directory under the state directory, created if it does not exist yet."""
    path = mlctl_home().joinpath(*parts)
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def bento_home() -> Path:
    """The Bento store: $BENTOML_HOME made absolute, else one under the state directory."""
    configured = os.environ.get(BENTO_HOME_VARIABLE)
    if not configured:
        return state_dir("bentoml")
    home = Path(configured).expanduser().absolute()
    home.mkdir(parents=True, exist_ok=True)
    return home


def bento_environment() -> dict[str, str]:
    """What a process that builds or serves a Bento needs on top of ours.

    The Bento's own packages and bundle are used, not those of the current directory or of
    an MLCTL_BUNDLE of ours (empty counts as unset); no library reports its usage.
    """
    return {
        BENTO_HOME_VARIABLE: str(bento_home()),
        "BENTOML_DO_NOT_TRACK": "True",
        "MLCTL_BUNDLE": "",
        "ORT_DISABLE_TELEMETRY": "1",
        "PYTHONSAFEPATH": "1",
    }
