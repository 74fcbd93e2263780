"""Errors in the form of OpenAI's API, for the paths under /v1."""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from mlctl.core.errors import ERROR_TABLE, ErrorCode
from mlctl.services.online.http.responses import Response, make_response

_V1 = "/v1"
# OpenAI's status for limits that callers share, as that of the queue; its client tries again.
BUSY = 429
# OpenAI's types of errors by HTTP status; others are "server_error".
_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error",
    404: "not_found_error", 405: "invalid_request_error", 413: "invalid_request_error",
    415: "invalid_request_error", BUSY: "rate_limit_error",
}  # fmt: skip
# Hints of this API in place of those for tensors, by error code.
_HINTS: Mapping[str, str] = {
    ErrorCode.PAYLOAD_TOO_LARGE: "Send a shorter request.",
    ErrorCode.DEADLINE_EXCEEDED: "Try again when the server has less to do.",
    ErrorCode.UNSUPPORTED_MEDIA_TYPE: "Send application/json.",
    ErrorCode.MODEL_NOT_FOUND: "GET /v1/models lists the models.",
    ErrorCode.NOT_FOUND: "This API has /v1/chat/completions, /v1/completions and /v1/models.",
}


def is_v1(path: str) -> bool:
    """Return whether `path` is one of OpenAI's API."""
    return path == _V1 or path.startswith(f"{_V1}/")


def openai_error(
    response: Response,
    status: int | None = None,
    param: str | None = None,
    code: str | None = None,
) -> Response:
    """Return a rejection in the form of OpenAI's API.

    `status` and `code` are its own, if it has others.
    """
    status = status or response.status
    found = orjson.loads(response.body)
    hint = _hint(ErrorCode(found["code"]), found["hint"])
    document = {
        "message": f"{found['error']}. {hint}" if hint else found["error"],
        "type": _TYPES.get(status, "server_error"),
        "param": param,
        "code": code or found["code"],
    }
    named = (b"content-type", b"content-length")
    extra = [header for header in response.headers if header[0] not in named]
    return make_response(status, b"application/json", orjson.dumps({"error": document}), extra)


def _hint(code: ErrorCode, hint: str) -> str:
    """Return the hint that is of use to clients of this API."""
    if code is ErrorCode.MODEL_NOT_FOUND or hint == ERROR_TABLE[code].hint:
        return _HINTS.get(code, hint)
    return hint
