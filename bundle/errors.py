"""The one error of mlctl: a code of the table, one sentence, and what to do.

Raise `MlctlError` with an `ErrorCode`; a command exits with the table's exit code, the
HTTP API answers with its HTTP status, the gRPC API with its gRPC status.
"""

from __future__ import annotations

from bundle.error_codes import ErrorCode
from bundle.error_table import ERROR_TABLE, ErrorSpec

__all__ = ["ERROR_TABLE", "ErrorCode", "ErrorSpec", "MlctlError"]


class MlctlError(Exception):
    """The root of mlctl's errors: a code of the table, one sentence, and what to do.

    `message` must be safe to show to a remote client: no paths of the server and no
    library text unless the error can only reach the operator.
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
        """The form that `--json` and the HTTP API print."""
        return {
            "code": self.code.value,
            "message": self.message,
            "hint": self.hint,
            "exit_code": self.spec.exit_code,
        }
