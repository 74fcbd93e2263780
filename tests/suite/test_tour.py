"""The tour of tests/README.md names tests that exist."""

from __future__ import annotations

from tests.suite.tour import tour
from tests.test_architecture import ROOT
from tests.test_threats import names_in


def test_tour__each_entry__is_a_test() -> None:
    entries = [entry.partition("::") for entry in tour()]
    assert len(entries) == 30
    missing = [
        f"{file}::{name}"
        for file, _, name in entries
        if not (ROOT / file).is_file() or name not in names_in(ROOT / file)
    ]
    assert missing == []
