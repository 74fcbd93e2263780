"""What protects a deployment, taken from the environment once: tokens, and who must have signed.

Its daemon is started again from any shell. One without the variables would open the API, or
serve what nobody signed.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from bundle.errors import ErrorCode, MlctlError
from bundle.files import write_atomic
from bundle.tokens import TOKEN, TOKEN_FILE, parse_tokens, read_tokens
from rollout.domain.spec import DeploymentSettings
from rollout.journal import paths

# The server's own setting, as in services.online.security.settings.
SIGNER = "MLCTL_REQUIRE_SIGNATURE"


def with_token(name: str, settings: DeploymentSettings) -> DeploymentSettings:
    """`settings` with the tokens in force here, or else with those that they have.

    A file stays where it is, so that its tokens can be rotated. INVALID_INPUT if it cannot be
    read or holds none.
    """
    given, text = os.environ.get(TOKEN_FILE), os.environ.get(TOKEN)
    if given:
        path = Path(given).absolute()
    elif text:
        parse_tokens(text, TOKEN)
        path = paths.directory(name) / "token"
        write_atomic(path, text.encode(), mode=0o600)
    elif settings.token_file is not None:
        path = Path(settings.token_file)
    else:
        return settings
    read_tokens(path)
    return replace(settings, token_file=str(path))


def with_signer(settings: DeploymentSettings) -> DeploymentSettings:
    """`settings` with the public key that is asked for here, or else with the one that they have.

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
            "Name the public key of who signs your bundles.",
        )
    return replace(settings, signer=str(path))


def guarding_environment(settings: DeploymentSettings) -> dict[str, str]:
    """Return the security variables of the deployment's processes; they override the shell's."""
    variables = {} if settings.token_file is None else {TOKEN_FILE: settings.token_file, TOKEN: ""}
    return variables if settings.signer is None else {**variables, SIGNER: settings.signer}
