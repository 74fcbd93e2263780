"""Which errors of a remote file system may pass by themselves, and what the others mean."""

from __future__ import annotations

import errno

# Of the packages that fsspec's file systems are made with, as far as they are no OSError.
_AWAY = frozenset(
    {
        ("aiohttp", "ClientConnectionError"),
        ("aiohttp", "ClientPayloadError"),
        ("azure", "ServiceRequestError"),
        ("azure", "ServiceResponseError"),
        ("botocore", "ConnectionError"),
        ("botocore", "HTTPClientError"),
    }
)
# A place that wants to know who asks, and was told nothing.
_NAMELESS = frozenset(
    {
        ("azure", "ClientAuthenticationError"),
        ("botocore", "NoCredentialsError"),
        ("botocore", "PartialCredentialsError"),
        ("google", "DefaultCredentialsError"),
    }
)
_LASTING = (
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)
_WRONG = frozenset({errno.EINVAL, errno.ENOTSUP, errno.ENAMETOOLONG})
# Too slow, too early, too many requests.
_BUSY = frozenset({408, 425, 429})
_GONE = frozenset({404, 410})
_FORBIDDEN = frozenset({401, 403})


def is_away(error: BaseException) -> bool:
    """Whether the place did not answer, or could not for now: not what it has, or refuses."""
    status = _status(error)
    if status is not None:
        return status in _BUSY or status >= 500
    if isinstance(error, FileNotFoundError) and error.__cause__ is not None:
        return is_away(error.__cause__)  # fsspec says so of each error of HTTP
    if isinstance(error, OSError):
        # One without a number and a class of its own is Arrow's, of what a file holds.
        known = error.errno is not None or type(error) is not OSError
        return known and error.errno not in _WRONG and not isinstance(error, _LASTING)
    return not _AWAY.isdisjoint(_kinds(error))


def refusal(error: BaseException) -> str | None:
    """What a place that answered lacks or forbids, in a few words; None for any other error."""
    if isinstance(error, PermissionError) or _status(error) in _FORBIDDEN:
        return "it may not be read with these credentials"
    if isinstance(error, FileNotFoundError):  # fsspec says so of each error of HTTP
        return (error.__cause__ and refusal(error.__cause__)) or "it does not exist"
    if _status(error) in _GONE:
        return "it does not exist"
    return None if _NAMELESS.isdisjoint(_kinds(error)) else "there are no credentials for it"


def cause(error: BaseException) -> str:
    """The error in a few words, without addresses: those may have what is secret."""
    status = _status(error)
    if status is not None:
        return f"HTTP status {status}"
    if isinstance(error, FileNotFoundError) and error.__cause__ is not None:
        return cause(error.__cause__)
    told = error.strerror if isinstance(error, OSError) and error.errno is not None else None
    return told or type(error).__name__


def _kinds(error: BaseException) -> set[tuple[str, str]]:
    """The packages and names of its classes."""
    return {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(error).__mro__}


def _status(error: BaseException) -> int | None:
    """The status of HTTP, by the names that clients give it."""
    for holder in (error, getattr(error, "response", None)):
        for name in ("status", "status_code", "code"):
            found = getattr(holder, name, None)
            if isinstance(found, int) and 400 <= found < 600:
                return found
    return None
