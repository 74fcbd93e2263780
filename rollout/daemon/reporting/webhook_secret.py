"""The secret that signs notices: taken from the environment once, kept as a file's path.

The daemon is started again from any shell, which need not have the variable.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from bundle.errors import ErrorCode, MlctlError
from bundle.files import write_atomic
from rollout.domain.spec import DeploymentSettings
from rollout.journal import paths

VARIABLE = "MLCTL_WEBHOOK_SECRET"
FILE_VARIABLE = "MLCTL_WEBHOOK_SECRET_FILE"


def with_secret(name: str, settings: DeploymentSettings) -> DeploymentSettings:
    """`settings` with the secret in force here, if there is one and there are webhooks.

    A file stays where it is, so that it can be changed while the deployment runs.
    INVALID_INPUT if it cannot be read or is empty.
    """
    given, text = os.environ.get(FILE_VARIABLE), os.environ.get(VARIABLE)
    if not settings.webhooks or not (given or text):
        return settings
    if given:
        path = Path(given).absolute()
        _check(path)
    else:
        path = paths.directory(name) / "webhook-secret"
        write_atomic(path, str(text).encode(), mode=0o600)
    return replace(settings, webhook_secret=str(path))


def _check(path: Path) -> None:
    try:
        held = path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        held = ""
    if not held:
        raise MlctlError(
            ErrorCode.INVALID_INPUT, f"{FILE_VARIABLE} names no file that holds a secret"
        )
