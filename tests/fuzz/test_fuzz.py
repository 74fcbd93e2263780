"""A bounded run of every target, the same inputs each time; `make fuzz` looks for new ones."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import strategies as st

from mlctl.core.errors import ErrorCode, MlctlError
from tests.fuzz.campaign import Campaign
from tests.fuzz.target import Feed, FindingError, Target, examine
from tests.fuzz.targets import TARGETS

MUTATIONS = 80
EXAMPLES = 25


@pytest.mark.parametrize("name", TARGETS)
def test_targets__bounded_run__has_no_findings(name: str) -> None:
    target = TARGETS[name]
    with target.opened() as feed:
        campaign = Campaign(target, feed, random.Random(0))
        campaign.replay()
        campaign.draw(EXAMPLES, derandomize=True)
        campaign.mutate(MUTATIONS)
    assert not campaign.findings
    # Where all inputs end at the first check, nothing behind it was tried.
    assert len(campaign.ways) > 2


@contextmanager
def _faulty() -> Iterator[Feed]:
    def feed(data: bytes) -> str:
        if b"crash" in data:
            raise KeyError(data)
        if b"leak" in data:
            raise MlctlError(ErrorCode.INTERNAL, "not for callers")
        if b"bad" in data:
            raise MlctlError(ErrorCode.INVALID_INPUT, "refused")
        return "taken"

    yield feed


FAULTY = Target(
    "faulty",
    _faulty,
    st.sampled_from([b"good", b"bad", b"a long crash", b"crash", b"leak"]),
    frozenset({ErrorCode.INVALID_INPUT}),
)


def test_campaign__faulty_target__keeps_the_shortest_input() -> None:
    with FAULTY.opened() as feed:
        campaign = Campaign(FAULTY, feed, random.Random(0))
        campaign.draw(50, derandomize=True)
        assert sorted(campaign.findings.values()) == [b"crash", b"leak"]
        assert len(campaign.ways) == 2
        with pytest.raises(FindingError, match="refused as internal"):
            examine(FAULTY, feed, b"leak")
