"""Keep libraries' prints, warnings and log lines off the user's terminal.

MLflow, exporters and calibrators write to stdout, where they would corrupt `--json`.
Exceptions pass through.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Iterator

# What ONNX Runtime puts before each of its errors.
_RUNTIME = re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : ")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress prints, warnings and logging while the block runs."""
    before = logging.root.manager.disable
    nested = before >= logging.CRITICAL  # each change empties the cache of every logger
    if not nested:
        logging.disable(logging.CRITICAL)
    try:
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        if not nested:
            logging.disable(before)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, joined with the next if it ends with a colon."""
    text = _RUNTIME.sub("", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].endswith(":"):
        lines[0] += f" {lines[1]}"
    return (lines[0] if lines else type(error).__name__)[:300]
