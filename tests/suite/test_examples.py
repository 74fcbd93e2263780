"""The examples of a property test do not depend on what its process has loaded."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.suite.examples import PROFILE


def drawn() -> list[list[int]]:
    found: list[list[int]] = []

    @settings(max_examples=20)
    @given(st.lists(st.integers(), min_size=50))
    def draw(numbers: list[int]) -> None:
        found.append(numbers)

    draw()
    return found


def test_examples__module_with_constants_is_loaded__are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if settings.get_current_profile_name() != PROFILE:
        return  # it looks for other examples on purpose
    before = drawn()
    path = tmp_path / "constants_of_a_module.py"
    path.write_text(f"NUMBERS = {[10**9 + 7 * at for at in range(200)]}\n")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, path.stem, module)
    spec.loader.exec_module(module)
    assert drawn() == before
