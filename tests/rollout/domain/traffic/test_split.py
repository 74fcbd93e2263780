"""The measured difference of a split: its value, and how often its interval holds the truth."""

from __future__ import annotations

import json
import random

import pytest

from mlctl.core.errors import MlctlError
from mlctl.rollout.domain.spec import Slot
from mlctl.rollout.domain.traffic.counts import Totals
from mlctl.rollout.domain.traffic.split import MIN_BLOCKS, PairedBlocks, Split, SplitRecord
from mlctl.rollout.journal import records
from tests.support.rollouts import revision

EDGES = (10.0, 100.0)
BLUE, GREEN = Slot


def totals(n: int, slow: int = 0, errors: int = 0) -> Totals:
    """So many requests: `slow` of them took 10 to 100 ms, the others less."""
    return Totals(n, errors, n, (n - slow, n))


def test_weights__other_slot_not_ready__live_gets_all() -> None:
    split = Split(revision("tiny:bb"), 10, False, 0.0)
    assert split.weights(GREEN, ready=True) == {GREEN: 90, BLUE: 10}
    assert split.weights(GREEN, ready=False) == {GREEN: 100, BLUE: 0}


@pytest.mark.parametrize("percent", [0, 100])
def test_split__share_of_nothing_or_all__rejected(percent: int) -> None:
    with pytest.raises(MlctlError, match="percent"):
        Split(revision("tiny:bb"), percent, False, 0.0)


def test_record__blocks__counts_and_differences_in_their_units() -> None:
    record = SplitRecord()
    for _ in range(MIN_BLOCKS):
        block = {GREEN: totals(90), BLUE: totals(10, slow=5, errors=1)}
        record = record.add(block, GREEN, EDGES)
    assert (record.live.requests, record.live.errors) == (90 * MIN_BLOCKS, 0)
    assert (record.other.requests, record.other.errors) == (10 * MIN_BLOCKS, MIN_BLOCKS)
    assert (record.live.quantile(0.5), record.other.quantile(0.99)) == (10.0, 100.0)
    errors, latency = record.errors.difference(), record.latency.difference()
    assert errors is not None
    assert latency is not None
    assert errors.value == pytest.approx(0.1)
    # Half of them at the middle of 10 to 100 ms instead of that of 0 to 10.
    assert latency.value == pytest.approx(0.5 * 55 - 0.5 * 5)
    assert (latency.low, latency.high) == pytest.approx((latency.value, latency.value))


def test_record__few_blocks_or_one_slot__no_interval() -> None:
    record = SplitRecord().add({BLUE: totals(9), GREEN: totals(0)}, BLUE, EDGES)
    assert record.errors.difference() is None
    record = record.add({BLUE: totals(9), GREEN: totals(1)}, BLUE, EDGES)
    found = record.errors.difference()
    assert found is not None
    assert (found.value, found.low, found.high) == (0.0, None, None)
    assert record.add({BLUE: totals(0), GREEN: totals(0)}, BLUE, EDGES) is record


def test_record__json__is_read_back() -> None:
    record = SplitRecord().add({BLUE: totals(9), GREEN: totals(1, slow=1)}, BLUE, EDGES)
    document = json.loads(records.dumps(record))
    assert records.value_from(SplitRecord, document) == record


@pytest.mark.parametrize("together", [False, True])
def test_interval__bursts__holds_the_true_difference(together: bool) -> None:
    """One block in ten is bad: 30 % of its requests fail, on one side or on both at once."""
    rng = random.Random(7)
    runs, held = 400, 0
    for _ in range(runs):
        blocks = PairedBlocks()
        for _ in range(150):
            live_bad = rng.random() < 0.1
            other_bad = live_bad if together else rng.random() < 0.1
            sides = ((200, live_bad), (50, other_bad))
            block = []
            for n, bad in sides:
                share = 0.3 if bad else 0.01
                block += [sum(rng.random() < share for _ in range(n)), n]
            blocks = blocks.add(block)
        found = blocks.difference()
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 0.0 <= found.high
    assert held / runs >= 0.92
