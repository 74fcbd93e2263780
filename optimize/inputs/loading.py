"""Load models that other libraries wrote."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.os_errors import is_disk_full
from mlctl.core.quiet import first_line, quiet
from mlctl.core.text import printable


@contextmanager
def loading(label: str, hint: str | None = None) -> Iterator[None]:
    """Run a library's reader quietly; its errors become UNSUPPORTED_MODEL about `label`.

    The file is foreign, and readers have no common exception.
    """
    try:
        with quiet():
            yield
    except Exception as error:
        if is_disk_full(error):
            raise
        reason = printable(first_line(error))
        message = f"{label} cannot be loaded: {reason}"
        raise MlctlError(ErrorCode.UNSUPPORTED_MODEL, message, hint) from error
