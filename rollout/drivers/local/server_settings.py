"""Keep the settings of a deployment's servers with it: variables that are in force at `mlctl up`.

The daemon, and so its servers, is started again from any shell: another shell's variables neither
reach the servers nor take away what was set. Those with a password are in a file for this user
only. What needs more than its text kept is in `security_settings`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.files import write_atomic
from mlctl.core.tokens import TOKEN_FILE
from mlctl.core.variables import PREFIX, shown_value
from mlctl.rollout.domain.spec import DeploymentSettings
from mlctl.rollout.journal import paths

_SECRETS = "server-secrets.json"
# Those of `security_settings`, and those that the deployment sets for each server.
_OTHERS = frozenset(
    {"token", "token_file", "require_signature", "tls_cert", "tls_key", "tls_client_ca"}
    | {"grpc_port", "grpc_host", "workers", "proxied", "bundle"}
)
_SQLITE = "sqlite://"


def with_server_settings(name: str, settings: DeploymentSettings) -> DeploymentSettings:
    """Return `settings` with the servers' variables in force here, and else with those they have.

    An empty variable takes one away. INVALID_INPUT for what would keep a server from starting.
    """
    from mlctl.services.model.settings import read_environment
    from mlctl.services.online.settings import ServerSettings

    given = {each: os.environ[each] for each in _variables() if each in os.environ}
    merged = {**settings.server, **_secrets(settings), **given}
    merged = {each: _anywhere(each, text) for each, text in merged.items() if text}
    token_file = {} if settings.token_file is None else {TOKEN_FILE: settings.token_file}
    read_environment(ServerSettings, {**merged, **token_file}).access()
    shown = {each: shown_value(each, text) for each, text in merged.items()}
    secrets = {each: text for each, text in merged.items() if shown[each] != text}
    file = paths.directory(name) / _SECRETS
    if secrets:
        write_atomic(file, json.dumps(secrets).encode(), mode=0o600)
    else:
        file.unlink(missing_ok=True)
    return replace(settings, server=shown, server_secrets=str(file) if secrets else None)


def server_environment(settings: DeploymentSettings) -> dict[str, str]:
    """Return the variables of all servers; those that the deployment does not set are empty.

    INVALID_INPUT if the file of the secret ones is gone.
    """
    return {**dict.fromkeys(_variables(), ""), **settings.server, **_secrets(settings)}


def _secrets(settings: DeploymentSettings) -> Mapping[str, str]:
    if settings.server_secrets is None:
        return {}
    try:
        found: dict[str, str] = json.loads(Path(settings.server_secrets).read_text())
    except (OSError, ValueError) as error:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{settings.server_secrets} cannot be read, with the passwords of the servers",
            "Start the deployment again: `mlctl down`, then `mlctl up` with the variables set.",
        ) from error
    return found


@cache
def _variables() -> tuple[str, ...]:
    from mlctl.services.online.settings import ServerSettings  # takes time to load

    return tuple(
        PREFIX + each.upper() for each in ServerSettings.model_fields if each not in _OTHERS
    )


def _anywhere(variable: str, text: str) -> str:
    """Return the value with its path, if it is one, made absolute."""
    name = variable.removeprefix(PREFIX).lower()
    if name == "feature_store" and text.startswith(_SQLITE):
        return _SQLITE + str(Path(text.removeprefix(_SQLITE)).absolute())
    is_path = (
        name in ("sample_dir", "sample_control")
        or (name == "access_log" and text not in ("off", "stdout", "stderr"))
        or (name == "precomputed_store" and "://" not in text)
    )
    return str(Path(text).absolute()) if is_path else text
