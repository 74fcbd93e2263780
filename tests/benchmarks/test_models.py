"""The table of models: what it compares, and what it says of a model that is rejected."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.model_zoo import CASES
from benchmarks.models import measure
from bundle.home import HOME_VARIABLE
from registry.tracking import TRACKING_VARIABLE


def test_zoo__its_cases__are_many_models_of_many_formats() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 25
    assert len({case.format for case in CASES}) >= 7


@pytest.mark.slow
def test_measure__a_table_with_missing_values__answers_as_the_source_on_each_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    monkeypatch.delenv(TRACKING_VARIABLE, raising=False)
    chosen = [case for case in CASES if case.name in ("forest", "catboost-categories", "sequence")]
    results = measure(chosen, online=False, fresh_rows=150)
    found = {result.case.name: result for result in results}
    assert set(found["forest"].worst) == {"batch", "stream, arrow"}
    assert all(worst is not None and worst < 2e-6 for worst in found["forest"].worst.values())
    assert found["catboost-categories"].rejection.endswith("these are categories or text: city")
    assert found["sequence"].rejection == "tensor 'y' of the graph is a sequence, not a tensor"
