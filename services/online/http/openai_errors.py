"""Errors in the form of OpenAI's API, for the paths under /v1."""

from __future__ import annotations

import orjson

from mlctl.services.online.http.responses import Response, make_response

V1 = "/v1/"
# OpenAI's status for limits that callers share, as that of the queue; its client tries again.
BUSY = 429
# OpenAI's types of errors by HTTP status; others are "server_error".
_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error",
    404: "not_found_error", 405: "invalid_request_error", 413: "invalid_request_error",
    415: "invalid_request_error", BUSY: "rate_limit_error",
}  # fmt: skip


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
    message = found["error"] if not found.get("hint") else f"{found['error']}. {found['hint']}"
    document = {
        "message": message,
        "type": _TYPES.get(status, "server_error"),
        "param": param,
        "code": code or found["code"],
    }
    named = (b"content-type", b"content-length")
    extra = [header for header in response.headers if header[0] not in named]
    return make_response(status, b"application/json", orjson.dumps({"error": document}), extra)
