"""The values inside a graph: equal to a run of all rows, and only as many rows as memory allows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from mlctl.optimize.data import Rows
from mlctl.optimize.recipes.graphs import load_typed
from mlctl.optimize.recipes.observe import observe, show_values
from mlctl.services.model.session import open_session
from tests.optimize.recipes.models import ROWS, images, network

# Of one row of `network` with all its values.
_ROW_BYTES = 4 * (256 + 256 + 256 + 32 + 32 + 4)


def shown(tmp_path: Path) -> Path:
    model = load_typed(network(tmp_path))
    show_values(model)
    path = tmp_path / "shown.onnx"
    onnx.save(model, str(path))
    return path


@pytest.mark.parametrize(
    ("limit", "counts"),
    [(1 << 20, [1, 8, 8, 8, 8, 7]), (3 * _ROW_BYTES + 9, [1, *[3] * 13]), (1, [1] * ROWS)],
)
def test_observe__a_limit_of_memory__divides_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, counts: list[int]
) -> None:
    monkeypatch.setattr("mlctl.optimize.recipes.observe._MAX_BYTES", limit)
    path = shown(tmp_path)
    parts = list(observe(path, Rows(images(), None)))
    assert [len(part["hidden"]) for part in parts] == counts
    whole = open_session(path).run(images())
    for name in ("x", "seen", "hidden", "y"):
        found = np.concatenate([part[name] for part in parts])
        np.testing.assert_allclose(found, {**images(), **whole}[name], rtol=1e-4, atol=1e-5)


def test_show_values__names__shows_no_others(tmp_path: Path) -> None:
    model = load_typed(network(tmp_path))
    show_values(model, {"x", "hidden", "y"})
    assert [value.name for value in model.graph.output] == ["y", "hidden"]
