"""Jinja2 environments for the files that mlctl writes: manifests, Containerfiles, clients.

Every value that a template inserts passes through the environment's `quote` function, so a
template cannot forget to quote one. The text of a macro is not quoted again. It is inserted
without its last line break, so that a call may stand on a line of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup


def environment(folder: Path, quote: Callable[[object], str]) -> Environment:
    """Return an environment for the templates in `folder` that writes values with `quote`.

    Lines that hold only a block or a comment disappear. A name without a value is an error.
    """

    def finalize(value: object) -> Markup:
        if isinstance(value, Markup):
            return value.removesuffix("\n")
        return Markup(quote(value))  # noqa: S704 - quoted

    return Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,  # keeps the text of macros apart from values; `finalize` does the quoting
        finalize=finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
