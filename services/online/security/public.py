"""Which errors a caller may see.

Most codes are about bundles, deployments and machines, and their messages name files and
addresses. If one of those occurs while a request is answered, as in a user's transform, it goes
to the log and the caller learns only that the server failed.
"""

from __future__ import annotations

from typing import TypeGuard

from mlctl.core.errors import ErrorCode, MlctlError

# Marks rejections by a client's own limit. Envoy counts answers with this header apart, so that the
# gates of a rollout do not take them for errors of the model.
THROTTLED = ("x-envoy-upstream-canary", "true")
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
        ErrorCode.NO_PRECOMPUTED_ANSWER,
        ErrorCode.MODEL_NOT_FOUND,
        ErrorCode.QUEUE_FULL,
        ErrorCode.RATE_LIMIT_EXCEEDED,
        ErrorCode.DEADLINE_EXCEEDED,
        ErrorCode.UNAVAILABLE,
    }
)


def is_public(error: BaseException) -> TypeGuard[MlctlError]:
    """Return whether a caller may see the error's message."""
    return isinstance(error, MlctlError) and error.code in CALLERS


def failed() -> MlctlError:
    """Return the error that a caller sees in place of one it may not see."""
    return MlctlError(ErrorCode.INTERNAL, "the request failed in the server")
