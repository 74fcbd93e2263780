"""Runs of pytest inside a test see this checkout, and load only the plugins that they name."""

from __future__ import annotations

import pytest

from tests.test_architecture import ROOT


@pytest.fixture(autouse=True)
def plain_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
