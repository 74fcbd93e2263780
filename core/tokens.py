"""Bearer tokens from an environment variable, or from a file with one token per line.

A line of the file may name the client that has the token: `NAME: TOKEN`. A client can have several,
so that a new token works before the old one is removed. Empty lines and lines that begin with # are
ignored. Errors never contain a token.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from mlctl.core.errors import ErrorCode, MlctlError

TOKEN, TOKEN_FILE = "MLCTL_TOKEN", "MLCTL_TOKEN_FILE"
# The client of tokens without a name.
UNNAMED = "unnamed"
# The characters of RFC 6750, and long enough that a token cannot be guessed. No token has a colon.
_TOKEN = re.compile(r"[A-Za-z0-9\-._~+/]{16,512}=*")
_NAMED = re.compile(r"(?:([A-Za-z0-9][A-Za-z0-9._-]{0,63}):[ \t]*)?([^:]*)")
_HINT = (
    "Make a token with `openssl rand -hex 32`; a file has one `TOKEN` or `NAME: TOKEN` per line."
)
_MAX_FILE_BYTES = 64 << 10


class ClientToken(NamedTuple):
    """A token and the name of its client."""

    client: str
    token: str


def parse_tokens(text: str, where: str) -> tuple[ClientToken, ...]:
    """Parse the tokens of a file's `text`; INVALID_INPUT names `where` and the line at fault."""
    found: dict[str, str] = {}
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if not line or line.startswith("#"):
            continue
        parts = _NAMED.fullmatch(line)
        if parts is None:
            raise _invalid(number, where, "has no name of 1 to 64 letters, digits or ._-")
        client, token = parts[1] or UNNAMED, parts[2]
        if not _TOKEN.fullmatch(token):
            raise _invalid(number, where, "has no token of 16 to 512 letters, digits or -._~+/")
        if found.setdefault(token, client) != client:
            raise _invalid(number, where, "has a token that an earlier line gives another client")
    if not found:
        raise MlctlError(ErrorCode.INVALID_INPUT, f"{where} has no token", _HINT)
    return tuple(ClientToken(client, token) for token, client in found.items())


def read_tokens(path: Path) -> tuple[ClientToken, ...]:
    """Read the tokens of the file at `path`; INVALID_INPUT if it cannot be read or has none."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
        text = content.decode("ascii")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not ASCII text"
        raise MlctlError(
            ErrorCode.INVALID_INPUT, f"the token file {path} cannot be read: {reason}", _HINT
        ) from None
    if len(content) > _MAX_FILE_BYTES:
        raise MlctlError(ErrorCode.INVALID_INPUT, f"the token file {path} is too large", _HINT)
    return parse_tokens(text, f"the token file {path}")


def token_of(environment: Mapping[str, str]) -> str | None:
    """Return the token for calls to a server that runs with `environment`, or None.

    Raises what `parse_tokens` and `read_tokens` raise.
    """
    if path := environment.get(TOKEN_FILE):
        return read_tokens(Path(path))[0].token
    text = environment.get(TOKEN)
    return parse_tokens(text, TOKEN)[0].token if text else None


def authorization() -> dict[str, str]:
    """Return the header for calling a server of this environment, empty without a token.

    Raises what `read_tokens` raises.
    """
    token = token_of(os.environ)
    return {} if token is None else {"authorization": f"Bearer {token}"}


def _invalid(number: int, where: str, fault: str) -> MlctlError:
    return MlctlError(ErrorCode.INVALID_INPUT, f"line {number} of {where} {fault}", _HINT)
