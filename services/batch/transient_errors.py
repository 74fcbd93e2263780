"""Classify errors of file systems as transient or permanent."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.files import NO_SPACE

# (package, class) of errors that are no OSError, from the packages behind fsspec's file systems.
_TRANSIENT = frozenset(
    {
        ("aiohttp", "ClientConnectionError"),
        ("aiohttp", "ClientPayloadError"),
        ("azure", "ServiceRequestError"),
        ("azure", "ServiceResponseError"),
        ("botocore", "ConnectionError"),
        ("botocore", "HTTPClientError"),
    }
)
# Credentials are required and none were found.
_NO_CREDENTIALS = frozenset(
    {
        ("azure", "ClientAuthenticationError"),
        ("botocore", "NoCredentialsError"),
        ("botocore", "PartialCredentialsError"),
        ("google", "DefaultCredentialsError"),
    }
)
_PERMANENT = (
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)
_WRONG = frozenset({errno.EINVAL, errno.ENOTSUP, errno.ENAMETOOLONG})
# HTTP: request timeout, too early, too many requests.
_BUSY = frozenset({408, 425, 429})
_GONE = frozenset({404, 410})
_FORBIDDEN = frozenset({401, 403})


def is_transient(error: BaseException) -> bool:
    """Return whether the error may pass without a change of the input or the credentials."""
    status = _http_status(error)
    if status is not None:
        return status in _BUSY or status >= 500
    if isinstance(error, FileNotFoundError) and error.__cause__ is not None:
        return is_transient(error.__cause__)  # fsspec raises it for every HTTP error
    if isinstance(error, OSError):
        # A bare OSError without a number is Arrow's, about the content of a file.
        specific = error.errno is not None or type(error) is not OSError
        return specific and error.errno not in _WRONG and not isinstance(error, _PERMANENT)
    return not _TRANSIENT.isdisjoint(_class_names(error))


def permanent_reason(error: BaseException) -> str | None:
    """Return in a few words what is missing or forbidden; None for any other error."""
    if isinstance(error, PermissionError) or _http_status(error) in _FORBIDDEN:
        return "access is denied with these credentials"
    if isinstance(error, FileNotFoundError):
        return (error.__cause__ and permanent_reason(error.__cause__)) or "it does not exist"
    if _http_status(error) in _GONE:
        return "it does not exist"
    return None if _NO_CREDENTIALS.isdisjoint(_class_names(error)) else "no credentials were found"


@contextlib.contextmanager
def translate_errors(location: str, unavailable: ErrorCode) -> Iterator[None]:
    """Raise `unavailable` for transient errors, INVALID_INPUT for what is missing or forbidden.

    The OSError of a full disk, and errors of other kinds, pass. Messages never contain the text of
    the error: it may contain addresses with secrets.
    """
    try:
        yield
    except MlctlError:
        raise
    except Exception as error:  # every file system has its own classes
        if isinstance(error, OSError) and error.errno in NO_SPACE:
            raise
        if is_transient(error):
            raise MlctlError(
                unavailable, f"{location} cannot be reached: {_short(error)}"
            ) from error
        if (reason := permanent_reason(error)) is None:
            raise
        verb = "read" if unavailable is ErrorCode.SOURCE_UNAVAILABLE else "written"
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{location} cannot be {verb}: {reason}",
            "Check the address and the credentials of its file system.",
        ) from error


def _short(error: BaseException) -> str:
    status = _http_status(error)
    if status is not None:
        return f"HTTP status {status}"
    if isinstance(error, FileNotFoundError) and error.__cause__ is not None:
        return _short(error.__cause__)
    text = error.strerror if isinstance(error, OSError) and error.errno is not None else None
    return text or type(error).__name__


def _class_names(error: BaseException) -> set[tuple[str, str]]:
    return {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(error).__mro__}


def _http_status(error: BaseException) -> int | None:
    """Return the HTTP status under any of the names that clients give it."""
    for holder in (error, getattr(error, "response", None)):
        for name in ("status", "status_code", "code"):
            found = getattr(holder, name, None)
            if isinstance(found, int) and 400 <= found < 600:
                return found
    return None
