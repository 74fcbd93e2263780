"""The Jinja2 environment of pages with charts."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from mlctl.core.text import printable

FOLDER = Path(__file__).parent


@cache
def chart_environment(folder: Path) -> Any:
    """Return the environment of the templates in `folder`, beside `svg.html.j2` and `style.css`.

    All text is escaped, and control characters in it, which neither XML nor a reader can take, are
    replaced.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader([folder, FOLDER]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _visible(value: Any) -> Any:
    return printable(value) if type(value) is str else value
