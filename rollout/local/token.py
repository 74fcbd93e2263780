"""The tokens of a deployment: taken from the environment once, kept as a file's path.

Its daemon is started again from any shell. One without the variable would open the API.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from bundle.files import write_atomic
from bundle.tokens import TOKEN, TOKEN_FILE, parse_tokens, read_tokens
from rollout.model import Settings
from rollout.state import places


def with_token(name: str, settings: Settings) -> Settings:
    """`settings` with the tokens in force here, or else with those that they have.

    A file stays where it is, so that its tokens can be rotated. INVALID_INPUT if it cannot be
    read or holds none.
    """
    given, text = os.environ.get(TOKEN_FILE), os.environ.get(TOKEN)
    if given:
        path = Path(given).absolute()
    elif text:
        parse_tokens(text, TOKEN)
        path = places.directory(name) / "token"
        write_atomic(path, text.encode(), mode=0o600)
    elif settings.token_file is not None:
        path = Path(settings.token_file)
    else:
        return settings
    read_tokens(path)
    return replace(settings, token_file=str(path))


def token_environment(settings: Settings) -> dict[str, str]:
    """What the deployment's processes are told of its tokens, whatever a shell says."""
    return {} if settings.token_file is None else {TOKEN_FILE: settings.token_file, TOKEN: ""}
