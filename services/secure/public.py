"""What of an error a caller may see.

Most codes are about bundles, deployments and machines, and their messages name files and
addresses. Should one of those happen while a request is answered, as in a user's
transform, then it is the log's and the caller learns that the server failed.
"""

from __future__ import annotations

from typing import TypeGuard

from bundle.errors import ErrorCode, MlctlError

CALLERS = frozenset(
    {
        ErrorCode.INTERNAL,
        ErrorCode.INVALID_INPUT,
        ErrorCode.UNSUPPORTED_MEDIA_TYPE,
        ErrorCode.PAYLOAD_TOO_LARGE,
        ErrorCode.NOT_FOUND,
        ErrorCode.METHOD_NOT_ALLOWED,
        ErrorCode.UNAUTHENTICATED,
        ErrorCode.NOT_PERMITTED,
        ErrorCode.KEY_NOT_FOUND,
        ErrorCode.MODEL_NOT_FOUND,
        ErrorCode.QUEUE_FULL,
        ErrorCode.DEADLINE_EXCEEDED,
        ErrorCode.UNAVAILABLE,
    }
)


def is_public(error: BaseException) -> TypeGuard[MlctlError]:
    """Whether the error's own words may go to a caller."""
    return isinstance(error, MlctlError) and error.code in CALLERS


def failed() -> MlctlError:
    """What a caller is told of an error that is not for it."""
    return MlctlError(ErrorCode.INTERNAL, "the request failed in the server")
