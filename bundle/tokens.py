"""Bearer tokens from an environment variable, or from a file with one token per line.

A file can have several, so that a new token works before the old one is removed. Empty lines and
lines that begin with # are ignored. Errors never contain a token.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from bundle.errors import ErrorCode, MlctlError

TOKEN, TOKEN_FILE = "MLCTL_TOKEN", "MLCTL_TOKEN_FILE"
# The characters of RFC 6750, and long enough that a token cannot be guessed.
_TOKEN = re.compile(r"[A-Za-z0-9\-._~+/]{16,512}=*")
_HINT = "Make a token with `openssl rand -hex 32`; a file has one token per line."
_MAX_FILE_BYTES = 64 << 10


def parse_tokens(text: str, where: str) -> tuple[str, ...]:
    """Parse the tokens of a file's `text`; INVALID_INPUT names `where` and the line at fault."""
    lines = [line.strip() for line in text.splitlines()]
    tokens = {number: line for number, line in enumerate(lines, 1) if line and line[0] != "#"}
    if not tokens:
        raise MlctlError(ErrorCode.INVALID_INPUT, f"{where} has no token", _HINT)
    for number, token in tokens.items():
        if not _TOKEN.fullmatch(token):
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"line {number} of {where} is not a token of 16 to 512 letters, digits or -._~+/",
                _HINT,
            )
    return tuple(dict.fromkeys(tokens.values()))


def read_tokens(path: Path) -> tuple[str, ...]:
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

    Raises what `read_tokens` raises.
    """
    if path := environment.get(TOKEN_FILE):
        return read_tokens(Path(path))[0]
    return environment.get(TOKEN) or None
