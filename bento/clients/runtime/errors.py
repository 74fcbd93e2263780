"""What can go wrong with a call: one tree, with the server's own code and hint."""

from __future__ import annotations


class ModelError(Exception):
    """The root. `code` is the stable name of what is wrong, `hint` says what to do.

    `status` is the HTTP status, 0 if there was no answer over HTTP. `retry_after` is how many
    seconds the server asks to wait, None if it does not.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str = "",
        hint: str = "",
        status: int = 0,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.hint = hint
        self.status = status
        self.retry_after = retry_after

    def __str__(self) -> str:
        code = f" ({self.code})" if self.code else ""
        return f"{self.message}{code}. {self.hint}" if self.hint else f"{self.message}{code}"


class InvalidInputError(ModelError):
    """The request is wrong; found before it was sent, or by the server."""


class TooLargeError(InvalidInputError):
    """The request is larger than the server takes."""


class AccessError(ModelError):
    """The server asks for a token, or does not permit this."""


class NotFoundError(ModelError):
    """The server has no such model, or not this version of it."""


class DeadlineError(ModelError):
    """The time of the call is up."""


class UnavailableError(ModelError):
    """The server cannot be reached, starts, or stops. The call may be repeated."""


class OverloadedError(UnavailableError):
    """The server has as much work waiting as it takes. The call may be repeated later."""


class ServerError(ModelError):
    """The server failed, or its answer is not one of the protocol."""


_BY_CODE: dict[str, type[ModelError]] = {
    "invalid_input": InvalidInputError,
    "unsupported_media_type": InvalidInputError,
    "method_not_allowed": InvalidInputError,
    "payload_too_large": TooLargeError,
    "unauthenticated": AccessError,
    "not_permitted": AccessError,
    "not_found": NotFoundError,
    "model_not_found": NotFoundError,
    "no_precomputed_answer": NotFoundError,
    "deadline_exceeded": DeadlineError,
    "unavailable": UnavailableError,
    "not_ready": UnavailableError,
    "queue_full": OverloadedError,
}
# For answers of a proxy, which have no code of the server.
_BY_STATUS: dict[int, type[ModelError]] = {
    400: InvalidInputError,
    401: AccessError,
    403: AccessError,
    404: NotFoundError,
    408: DeadlineError,
    413: TooLargeError,
    415: InvalidInputError,
    429: OverloadedError,
    502: UnavailableError,
    503: UnavailableError,
    504: DeadlineError,
}


def error_of(
    message: str, code: str, hint: str, status: int, retry_after: float | None
) -> ModelError:
    """The error that `code` names, or else the HTTP `status`."""
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status, ServerError)
    return kind(message, code=code, hint=hint, status=status, retry_after=retry_after)
