from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from mlctl.cli.main import cli
from mlctl.core.errors import MlctlError
from mlctl.doctor.patterns import (
    Consumer,
    Pattern,
    WorkloadNeeds,
    choose_pattern,
    commands,
    compare_patterns,
)


@pytest.mark.parametrize(
    ("workload", "pattern"),
    [
        (WorkloadNeeds(Consumer.REQUESTS, 1e6), Pattern.ONLINE),
        (WorkloadNeeds(Consumer.REQUESTS, 1e6, max_age_seconds=86_400), Pattern.ONLINE),
        (WorkloadNeeds(Consumer.REQUESTS, 1e9, 86_400, keys=100_000), Pattern.PRECOMPUTED),
        (WorkloadNeeds(Consumer.REQUESTS, 1e6, 86_400, keys=10**9), Pattern.ONLINE),
        (WorkloadNeeds(Consumer.REQUESTS, 1e6, 86_400, 2.5, 1000, 100), Pattern.PRECOMPUTED),
        (WorkloadNeeds(Consumer.TABLE, 1e6), Pattern.BATCH),
        (WorkloadNeeds(Consumer.TABLE, 1e6, max_age_seconds=60), Pattern.STREAM),
        (WorkloadNeeds(Consumer.EVENTS, 1e6), Pattern.STREAM),
        (WorkloadNeeds(Consumer.EVENTS, 1e6, max_age_seconds=3600), Pattern.BATCH),
    ],
)
def test_choose_pattern__workload__takes_the_cheapest_that_fits(
    workload: WorkloadNeeds, pattern: Pattern
) -> None:
    assert choose_pattern(workload).pattern is pattern


def test_choose_pattern__latency_below_one_row__fits_nothing() -> None:
    with pytest.raises(MlctlError, match=r"about 12\.0 ms \(limit 5 ms\)"):
        choose_pattern(WorkloadNeeds(Consumer.REQUESTS, 1e6, latency_ms=5, rows_per_second=100))


def test_compare_patterns__sums__give_the_core_hours() -> None:
    costs = {each.pattern: each for each in compare_patterns(WorkloadNeeds(Consumer.TABLE, 86.4e6))}
    assert costs[Pattern.BATCH].core_hours == pytest.approx(24.0)
    assert costs[Pattern.ONLINE].core_hours == 24.0 * 6  # 1,000 rows/s, 3 times that at the peak
    assert "= 6 cores x 24 h" in costs[Pattern.ONLINE].sum


@given(st.sampled_from(Consumer), st.floats(1, 1e12), st.floats(0, 1e6), st.floats(1, 1e6))
def test_choose_pattern__more_rows__never_cost_less(
    consumer: Consumer, rows: float, age: float, speed: float
) -> None:
    def cost(factor: float) -> float:
        return choose_pattern(
            WorkloadNeeds(consumer, rows * factor, age, keys=1000, rows_per_second=speed)
        ).core_hours

    assert cost(1.0) <= cost(2.0)


@pytest.mark.parametrize("pattern", Pattern)
def test_commands__each_pattern__names_commands_that_exist(pattern: Pattern) -> None:
    for line in commands(pattern):
        words = line.removeprefix("MLCTL_PRECOMPUTED=NAME ").split()
        assert words[0] == "mlctl"
        assert words[1] in cli.commands


def test_choose__command__prints_the_pattern_and_its_commands() -> None:
    arguments = ["choose", "--used-by", "table", "--rows-per-day", "1e6", "--max-age", "1d"]
    document = json.loads(CliRunner().invoke(cli, [*arguments, "--json"]).output)
    assert document["pattern"] == "batch"
    assert document["commands"] == list(commands(Pattern.BATCH))
    assert len(document["patterns"]) == 4
    text = CliRunner().invoke(cli, arguments).output
    assert "batch: the cheapest that fits" in text
    assert "mlctl batch run" in text
