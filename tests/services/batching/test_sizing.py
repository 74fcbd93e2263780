"""The size of a full batch: the best one is found, whatever was believed at first."""

from math import inf

import pytest

from services.batching.batcher import Limits
from services.batching.costs import BatchCosts
from services.batching.sizing import BatchSize
from tests.services.batching.test_batcher_under_load import dense, flat
from tests.support.simulation import Cost, SimulatedServer, Story, percentile, poisson

SIZES = (1, 8, 32, 64)
LIMITS = Limits(64, 4096, gather=True, sizes=SIZES)
SOON = 0.0003


def cached(rows: int) -> float:
    """A transformer on one core: beyond eight rows its activations leave the cache."""
    return 0.003 + 0.0075 * rows + 0.0012 * max(0, rows - 8)


def believed(cost: Cost, **wrong: float) -> BatchCosts:
    """What the warm-up measured: right, but for sizes like `rows8`, by those factors."""
    return BatchCosts({rows: cost(rows) * wrong.get(f"rows{rows}", 1.0) for rows in SIZES})


def loop(
    cost: Cost,
    costs: BatchCosts,
    seconds: float = 30.0,
    limits: Limits = LIMITS,
    clients: int = 64,
) -> Story:
    return SimulatedServer(limits, cost, costs).loop(clients, SOON, seconds)


def rate(story: Story, since: float = 0.0) -> float:
    ends = [end for _, end in story.answered if end >= since]
    return len(ends) / (max(ends) - since)


def settled_size(story: Story) -> float:
    last = story.batches[-60:-8]
    return sorted(last)[len(last) // 2]


@pytest.mark.parametrize(("cost", "best"), [(cached, 8), (dense, 64), (flat, 64)])
def test_the_size_is_where_most_rows_a_second_are_done(cost: Cost, best: int) -> None:
    size = BatchSize(believed(cost), SIZES)
    assert (size.best, size.next, size.largest) == (best, best, 64)


def test_a_little_more_is_no_reason_for_smaller_batches() -> None:
    costs = BatchCosts({8: 0.08, 64: 0.64 * 1.02})
    assert BatchSize(costs, (8, 64)).best == 64


def test_without_any_costs_a_batch_is_as_large_as_it_may_be() -> None:
    size = BatchSize(BatchCosts(), SIZES)
    size.ended(64, 0.1, 100)
    assert (size.best, size.next) == (64, 64)


def test_clients_in_a_loop_get_what_the_best_size_gives() -> None:
    """Trials of other sizes included; and the answers come no later than in larger batches."""
    story = loop(cached, believed(cached))
    assert rate(story) >= 0.985 * 8 / cached(8)
    assert max(story.batches[16:]) > 8  # larger ones are tried
    largest = loop(cached, believed(cached), limits=Limits(64, 4096, gather=True))
    assert rate(story) >= 1.08 * rate(largest)
    usual = percentile(story.latencies(since=1.0), 0.5)
    assert usual <= percentile(largest.latencies(since=1.0), 0.5)
    assert not story.refused


@pytest.mark.parametrize(
    ("cost", "wrong", "size"),
    [
        (cached, {"rows8": 1.5}, 8),
        (cached, {"rows32": 0.5, "rows64": 0.6}, 8),
        (dense, {"rows64": 3.0}, 64),
        (dense, {"rows64": 3.0, "rows32": 3.0, "rows8": 0.9}, 64),
        (flat, {"rows1": 0.01, "rows64": 5.0}, 64),
    ],
)
def test_what_was_measured_wrong_is_put_right(
    cost: Cost, wrong: dict[str, float], size: int
) -> None:
    story = loop(cost, believed(cost, **wrong), 60.0, clients=160)
    assert settled_size(story) == pytest.approx(size, rel=0.1)
    assert rate(story, 40.0) >= 0.98 * size / cost(size)
    # The clients wait for their answers before they ask again: that is no overload.
    assert not story.refused


@pytest.mark.parametrize("cost", [cached, dense, flat])
@pytest.mark.parametrize("load", [0.3, 0.6])
def test_nobody_is_refused_below_saturation(cost: Cost, load: float) -> None:
    capacity = max(rows / cost(rows) for rows in SIZES)
    arrivals = poisson(load * capacity, 4000 / (load * capacity))
    story = SimulatedServer(LIMITS, cost, believed(cost, rows8=1.5)).play(arrivals)
    assert not story.refused
    assert not story.expired


def test_at_three_times_the_capacity_the_accepted_wait_for_small_batches_only() -> None:
    capacity = 8 / cached(8)
    half = SimulatedServer(LIMITS, cached, believed(cached)).play(poisson(0.5 * capacity, 40.0))
    arrivals = poisson(3 * capacity, 60.0)
    story = SimulatedServer(LIMITS, cached, believed(cached)).play(arrivals)
    usual = percentile(half.latencies(), 0.99)
    assert percentile(story.latencies(since=6.0), 0.99) <= 2 * usual + cached(8)
    assert len(story.answered) >= 0.95 * 60.0 * capacity


@pytest.mark.parametrize("clients", [1, 4])
def test_few_clients_have_no_trials(clients: int) -> None:
    """Nor any need of one: what they ask is measured as it comes."""
    story = SimulatedServer(LIMITS, cached, believed(cached)).loop(clients, SOON, 10.0)
    assert max(story.batches) <= clients


def test_trials_never_come_in_a_row() -> None:
    size = BatchSize(believed(cached), SIZES)
    seen, since = [], inf
    for _ in range(20_000):
        size.ended(size.next, cached(size.next), 64)
        if size.next == size.best:
            since += 1
        else:
            seen.append((size.next, since))
            since = 0
    assert {trial for trial, _ in seen} == {1, 32, 64}
    assert all(pause >= 5 for trial, pause in seen if trial > 8)
