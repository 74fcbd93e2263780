"""The search for any predicate, and the costs that it starts from."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlctl.optimize.data import Rows
from mlctl.optimize.recipes.base import Quality, Workbench
from mlctl.optimize.recipes.quantize.search import keep_worst, smallest_good
from tests.optimize.recipes.quantize.nets import Shelf, token_rows


@given(st.integers(1, 200), st.integers(1, 250))
def test_smallest_good__monotonic__finds_the_smallest(most: int, needed: int) -> None:
    tried: list[int] = []

    def good(kept: int) -> bool:
        tried.append(kept)
        return kept >= needed

    found = smallest_good(most, good)
    assert found == (needed if needed <= most else None)
    assert len(tried) == len(set(tried)) <= 9
    assert all(1 <= kept <= most for kept in tried)


@given(st.lists(st.booleans(), min_size=2, max_size=80))
def test_smallest_good__any_order__the_result_was_tried_and_good(verdicts: list[bool]) -> None:
    tried: dict[int, bool] = {}

    def good(kept: int) -> bool:
        tried[kept] = verdicts[kept]
        return verdicts[kept]

    found = smallest_good(len(verdicts) - 1, good)
    if found is None:
        # One try decides that a search cannot win.
        assert tried == {len(verdicts) - 1: False}
    else:
        assert found == min(kept for kept, verdict in tried.items() if verdict)


def bench(good: Collection[str], steps: list[tuple[str, int, int]]) -> Workbench:
    """A bench on which a directory is good if the layers in its file `kept` include `good`."""
    rows: Rows = token_rows(2)

    def quality(directory: Path) -> Quality:
        kept = (directory / "kept").read_text().split()
        return Quality(0.0, set(good) <= set(kept), f"kept {len(kept)}")

    def step(what: str, done: int, total: int) -> None:
        steps.append((what, done, total))

    return Workbench(rows, quality, Shelf(), step)


def write_kept(kept: Collection[str], directory: Path) -> None:
    (directory / "kept").write_text(" ".join(kept))


def test_keep_worst__the_costliest_stay_in_float__and_scratch_is_removed(tmp_path: Path) -> None:
    steps: list[tuple[str, int, int]] = []
    costs = {"d": 4.0, "b": 2.0, "a": 1.0, "c": 0.5}
    assert keep_worst(costs, write_kept, tmp_path, bench(["d"], steps)) == (("d",), "")
    assert steps == [("layers left in float", 2, 4), ("layers left in float", 1, 4)]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("costs", "words"),
    [
        ({"a": 2.0, "b": 1.0}, "; with 1 of 2 layers in float: kept 1"),
        ({"a": 3.0, "c": 2.0, "b": 1.0}, "; with 1 of 3 layers in float: kept 1"),
        ({"a": 2.0}, ""),
    ],
)
def test_keep_worst__half_of_the_layers_are_not_enough__keeps_none_and_says_so(
    tmp_path: Path, costs: dict[str, float], words: str
) -> None:
    found = keep_worst(costs, write_kept, tmp_path, bench(["b"], []))
    assert found == ((), f"no mostly quantized graph meets the goals{words}")
