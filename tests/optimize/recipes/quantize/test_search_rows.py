"""Multiply-accumulates of small nets, counted by hand, and the rows that a search tries."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bundle.home import HOME_VARIABLE
from optimize.data import Rows
from optimize.recipes.int8_cpu import Int8Cpu
from optimize.recipes.quantize import sensitivity
from optimize.recipes.quantize.sensitivity import (
    MAX_ROWS,
    MIN_ROWS,
    multiply_accumulates,
    trial_rows,
)
from tests.optimize.recipes.quantize.nets import (
    conv_net,
    distance,
    image_rows,
    product_net,
    token_rows,
    workbench,
)

PIXELS = 8 * 8
CONV_NET = PIXELS * (8 * 3 * 9 + 2 * 8 * 8 * 9) + 8 * 4
PRODUCT_NET = 6 * (16 * 32 + 2 * 32 * 32 + 32 * 16)  # 6 tokens, though the graph says any


@pytest.mark.parametrize(
    ("net", "rows", "expected"),
    [(conv_net, image_rows, CONV_NET), (product_net, token_rows, PRODUCT_NET)],
)
def test_multiply_accumulates__agrees_with_a_count_by_hand(
    tmp_path: Path, net: Callable[..., Path], rows: Callable[[int], Rows], expected: int
) -> None:
    source = net(tmp_path / "net", hard=False)
    for count in (1, 3):
        scratch = tmp_path / f"scratch-{count}"
        scratch.mkdir()
        assert multiply_accumulates(source, rows(count), scratch) == expected


@given(st.floats(0, 1e15), st.integers(1, 5000))
def test_trial_rows__more_work__never_means_more_rows(per_row: float, trials: int) -> None:
    rows = trial_rows(per_row, trials)
    assert MIN_ROWS <= trial_rows(per_row, trials + 1) <= rows <= MAX_ROWS
    assert trial_rows(2 * per_row, trials) <= rows


def test_trial_rows__a_small_and_a_large_net__have_all_and_some_rows() -> None:
    assert trial_rows(0.7e9, 36) == MAX_ROWS  # 6 layers of 384 on 64 tokens
    assert trial_rows(4.1e9, 70) == 4  # 50 layers on 224 x 224 pixels


def test_search__a_heavy_graph__uses_fewer_rows_and_keeps_the_same_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = conv_net(tmp_path / "net", hard=True)
    costs = []
    for name, budget in (("light", 1e12), ("heavy", 1.0)):
        monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / name))
        monkeypatch.setattr(sensitivity, "_BUDGET", budget)
        directory = tmp_path / name / "out"
        directory.mkdir(parents=True)
        details = Int8Cpu().build(source, directory, workbench(source, image_rows()))
        assert [layer.layer for layer in details.layers if layer.kept_in_float] == ["third"]
        assert distance(source, directory, image_rows()) < 0.05
        costs.append({layer.layer: layer.distance for layer in details.layers})
    assert costs[0] != costs[1]
