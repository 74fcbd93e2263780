"""Mark the tests that tests/README.md lists as its tour: a pytest plugin."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
_ENTRY = re.compile(r"^- `(tests/[\w/]+\.py::\w+)`$", re.MULTILINE)


def tour() -> list[str]:
    """Return the ids of the listed tests, without their parameters."""
    return _ENTRY.findall(README.read_text())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    listed = set(tour())
    for item in items:
        if item.nodeid.partition("[")[0] in listed:
            item.add_marker("tour")
