"""What proves to a NATS server who we are: of a place's options and the environment."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from bundle.errors import ErrorCode, MlctlError
from services.stream.base import Place
from services.stream.transports.tls import client_context, need_file

_TLS = ("tls_ca", "tls_cert", "tls_key")
_CREDS = re.compile(
    rb"-BEGIN NATS USER JWT-+\r?\n\S+\r?\n.*-BEGIN USER NKEY SEED-+\r?\n(\S+)\r?\n", re.DOTALL
)


def secrets_of(place: Place, *, tls: bool) -> dict[str, Any]:
    """The arguments of nats.connect(); INVALID_INPUT for files that cannot be read or used."""
    options = place.options
    creds = options.get("creds") or os.environ.get("MLCTL_NATS_CREDS")
    seed = options.get("nkey_seed")
    # The library looks for what is not there without end, or fails with errors of its own.
    if creds:
        _prove_seed("creds", creds, _CREDS)
    if seed:
        _prove_seed("nkey_seed", seed, re.compile(rb"\s*(\S+)\s*"))
    given: dict[str, Any] = {
        "user": os.environ.get("MLCTL_NATS_USER"),
        "password": os.environ.get("MLCTL_NATS_PASSWORD"),
        "token": os.environ.get("MLCTL_NATS_TOKEN"),
        "user_credentials": creds,
        "nkeys_seed": seed,
    }
    if not any(given.values()):
        given |= _user_of(place)
    if tls or any(name in options for name in _TLS):
        given["tls"] = client_context(options, *_TLS)
    return {name: value for name, value in given.items() if value}


def _prove_seed(name: str, path: str, form: re.Pattern[bytes]) -> None:
    """INVALID_INPUT if the file at `path` is not of `form`, whose group is the seed of a user."""
    need_file(name, path)
    try:
        import nkeys  # type: ignore[import-untyped]
    except ModuleNotFoundError as error:
        raise MlctlError(
            ErrorCode.RUNTIME_MISSING,
            f"{name} needs the package {error.name}",
            "pip install 'mlctl[nats]'",
        ) from error
    found = form.search(Path(path).read_bytes())
    try:
        nkeys.from_seed(bytearray(found[1] if found else b"")).wipe()
    except (nkeys.NkeysError, ValueError):
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{name} names a file that holds nothing of NATS that proves who we are: {path}",
            "creds is what `nsc generate creds` writes, nkey_seed a file with one user's seed.",
        ) from None


def _user_of(place: Place) -> dict[str, str]:
    """The user and the password, or the token, that stand before the first of the servers.

    They are decoded here: the library takes them as they are written.
    """
    for each in place.address.split(","):
        who, at, _ = each.rpartition("@")
        if at:
            user, colon, password = who.partition(":")
            found = {"user": user, "password": password} if colon else {"token": user}
            return {name: unquote(text) for name, text in found.items()}
    return {}
