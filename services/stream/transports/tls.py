"""TLS of brokers: files that were named wrongly, and certificates that are not accepted."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path

from bundle.errors import ErrorCode, MlctlError
from services.stream.base import StreamUrl


def client_context(options: Mapping[str, str], ca: str, cert: str, key: str) -> ssl.SSLContext:
    """Our side of TLS with the files that the options of these names name, if they are there.

    INVALID_INPUT if one cannot be read or used.
    """
    for name in (ca, cert, key):
        if name in options:
            need_file(name, options[name])
    if key in options and cert not in options:
        raise MlctlError(
            ErrorCode.INVALID_INPUT, f"{key} is a key without a certificate", f"Add {cert}."
        )
    try:
        context = ssl.create_default_context(cafile=options.get(ca))
        if cert in options:
            context.load_cert_chain(options[cert], options.get(key), _no_password)
    except ssl.SSLError as error:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"the files of {ca}, {cert} and {key} cannot be used: {error.reason or error}",
            "PEM is needed: the authority's certificate, ours, and its key without a password.",
        ) from error
    return context


def need_file(name: str, path: str) -> None:
    """INVALID_INPUT if the file that `name` names cannot be read."""
    try:
        Path(path).open("rb").close()
    except OSError as error:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{name} names a file that cannot be read: {path}",
            "Correct the path, or who may read it.",
        ) from error


def unavailable(place: StreamUrl, error: BaseException) -> MlctlError:
    """BROKER_UNAVAILABLE, and what TLS has against the broker if that is why."""
    trouble = _of_tls(error)
    if trouble is None:
        return MlctlError(ErrorCode.BROKER_UNAVAILABLE, f"{place.shown()} does not answer")
    if isinstance(trouble, ssl.SSLCertVerificationError):
        return MlctlError(
            ErrorCode.BROKER_UNAVAILABLE,
            f"the certificate of {place.shown()} is not accepted: {trouble.verify_message}",
            "Name its host as the certificate does, and its authority's file (docs/brokers.md).",
        )
    return MlctlError(
        ErrorCode.BROKER_UNAVAILABLE,
        f"{place.shown()} does not answer over TLS: {trouble.reason or trouble.strerror}",
        "It may ask for a certificate, or for another one (docs/brokers.md).",
    )


def _of_tls(error: BaseException | None) -> ssl.SSLError | None:
    """What the libraries' own errors were raised from."""
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    return error


def _no_password() -> str:
    """Nobody is asked at the terminal for the password of a key: it is a key that fails."""
    return ""
