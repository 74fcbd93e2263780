"""The base class of mlctl's errors.

Raise `MlctlError` with an `ErrorCode`; a command exits with the table's exit code, the
HTTP API answers with its HTTP status, the gRPC API with its gRPC status.
"""

from __future__ import annotations

from bundle.error_codes import ErrorCode
from bundle.error_table import ERROR_TABLE, ErrorSpec

__all__ = ["ERROR_TABLE", "ErrorCode", "ErrorSpec", "MlctlError"]


class MlctlError(Exception):
    """An error with a code of the table, a message of one sentence, and a hint what to do.

    `message` must be safe for remote clients: no paths of the server and no library text, unless
    only the operator can see the error.
    """

    def __init__(self, code: ErrorCode, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint if hint is not None else ERROR_TABLE[code].hint

    @property
    def spec(self) -> ErrorSpec:
        """The table's row for this error's code."""
        return ERROR_TABLE[self.code]

    def as_dict(self) -> dict[str, str | int]:
        """Return the error as `--json` and the HTTP API print it."""
        return {
            "code": self.code.value,
            "message": self.message,
            "hint": self.hint,
            "exit_code": self.spec.exit_code,
        }
