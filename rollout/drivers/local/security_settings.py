"""Read a deployment's security settings from the environment once, at `mlctl up`, and keep them.

These are the files of the API tokens, of the public key that bundles must be signed with, and of
the secret that signs notices. The daemon is started again from any shell: without the variables it
would open the API, serve unsigned bundles, or send unsigned notices.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.files import write_atomic
from mlctl.core.tokens import TOKEN, TOKEN_FILE, parse_tokens, read_tokens
from mlctl.rollout.domain.spec import DeploymentSettings
from mlctl.rollout.journal import paths

SIGNER = "MLCTL_REQUIRE_SIGNATURE"
WEBHOOK_SECRET = "MLCTL_WEBHOOK_SECRET"  # noqa: S105 - a variable's name
WEBHOOK_SECRET_FILE = "MLCTL_WEBHOOK_SECRET_FILE"  # noqa: S105 - as above


def with_token(name: str, settings: DeploymentSettings) -> DeploymentSettings:
    """Return `settings` with the tokens in force here, or else with those that they have.

    A file stays where it is, so that its tokens can be rotated. INVALID_INPUT if it cannot be
    read or holds none.
    """
    given, text = os.environ.get(TOKEN_FILE), os.environ.get(TOKEN)
    if given:
        path = Path(given).absolute()
    elif text:
        parse_tokens(text, TOKEN)
        path = _kept(name, "token", text)
    elif settings.token_file is not None:
        path = Path(settings.token_file)
    else:
        return settings
    read_tokens(path)
    return replace(settings, token_file=str(path))


def with_signer(settings: DeploymentSettings) -> DeploymentSettings:
    """Return `settings` with the public key in force here, or else with the one that they have.

    INVALID_INPUT if there is no such file.
    """
    given = os.environ.get(SIGNER) or settings.signer
    if given is None:
        return settings
    path = Path(given).absolute()
    if not path.is_file():
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{SIGNER} names {path}, which is no file",
            "Name the public key that your bundles are signed with.",
        )
    return replace(settings, signer=str(path))


def with_webhook_secret(name: str, settings: DeploymentSettings) -> DeploymentSettings:
    """Return `settings` with the secret in force here, if there is one.

    A file stays where it is, so that it can be changed while the deployment runs.
    INVALID_INPUT if it cannot be read or is empty.
    """
    given, text = os.environ.get(WEBHOOK_SECRET_FILE), os.environ.get(WEBHOOK_SECRET)
    if not (given or text):
        return settings
    path = Path(given).absolute() if given else _kept(name, "webhook-secret", str(text))
    try:
        secret = path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        secret = ""
    if not secret:
        raise MlctlError(
            ErrorCode.INVALID_INPUT, f"{WEBHOOK_SECRET_FILE} names no file that holds a secret"
        )
    return replace(settings, webhook_secret=str(path))


def security_environment(settings: DeploymentSettings) -> dict[str, str]:
    """Return the security variables of the deployment's processes; they override the shell's."""
    variables = {} if settings.token_file is None else {TOKEN_FILE: settings.token_file, TOKEN: ""}
    if settings.signer is not None:
        variables[SIGNER] = settings.signer
    return variables


def _kept(name: str, file: str, text: str) -> Path:
    """Write a secret to the deployment's directory, for this user only."""
    path = paths.directory(name) / file
    write_atomic(path, text.encode(), mode=0o600)
    return path
