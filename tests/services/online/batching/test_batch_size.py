"""The size of a full batch: the best one is found, whatever was believed at first."""

import random
from math import inf

import pytest

from services.online.batching.batch_size import BatchSize
from services.online.batching.scheduler import Limits
from services.runtime.batch_costs import BatchCosts
from tests.services.online.batching.test_batcher_under_load import dense, flat
from tests.support.simulation import Cost, SimulatedServer, Story, percentile, poisson

SIZES = (1, 8, 32, 64)
LIMITS = Limits(64, 4096, linger=True, sizes=SIZES)
SOON = 0.0003


def cached(rows: int) -> float:
    """A transformer on one core: beyond eight rows its activations leave the cache."""
    return 0.003 + 0.0075 * rows + 0.0012 * max(0, rows - 8)


def even(rows: int) -> float:
    """As long for each row, however many there are: all sizes are as good."""
    return 0.01 * rows


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
    largest = loop(cached, believed(cached), limits=Limits(64, 4096, linger=True))
    assert rate(story) >= 1.08 * rate(largest)
    usual = percentile(story.latencies(since=1.0), 0.5)
    assert usual <= percentile(largest.latencies(since=1.0), 0.5)
    assert not story.refused


@pytest.mark.slow
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


@pytest.mark.parametrize("clients", [64, 128, 200])
def test_clients_that_ask_for_now_more_now_less_are_no_overload_of_small_batches(
    clients: int,
) -> None:
    server = SimulatedServer(LIMITS, cached, believed(cached))
    story = server.loop(clients, SOON, 30.0, sizes=(1, 1, 1, 2, 5))
    assert not story.refused
    assert sum(story.batches) >= 0.9 * 30.0 * 8 / cached(8)


@pytest.mark.parametrize(("cost", "sizes", "best"), [(cached, SIZES, 8), (even, SIZES[1:], 64)])
def test_at_three_times_the_capacity_the_accepted_wait_for_full_batches_only(
    cost: Cost, sizes: tuple[int, ...], best: int
) -> None:
    limits = Limits(64, 4096, linger=True, sizes=sizes)
    capacity = best / cost(best)
    half = SimulatedServer(limits, cost, believed(cost)).play(poisson(0.5 * capacity, 40.0))
    arrivals = poisson(3 * capacity, 60.0)
    story = SimulatedServer(limits, cost, believed(cost)).play(arrivals)
    usual = max(cost(best), percentile(half.latencies(), 0.99))
    assert percentile(story.latencies(since=6.0), 0.99) <= 2 * usual + cost(best)
    assert len(story.answered) >= 0.95 * 60.0 * capacity


@pytest.mark.parametrize("cost", [cached, even])
def test_sizes_measured_anew_do_not_hide_an_overload(cost: Cost) -> None:
    """Where what a batch takes goes up and down, another size seems to be better all the time."""
    longest = []
    for sizes in ((), SIZES):
        limits, chance = Limits(64, 4096, linger=True, sizes=sizes), random.Random(1)

        def busy(rows: int, chance: random.Random = chance) -> float:
            return cost(rows) * chance.uniform(0.9, 1.4)

        story = SimulatedServer(limits, busy, believed(cost)).play(poisson(300.0, 30.0))
        longest.append(max(story.latencies()))
    assert longest[1] <= 1.25 * longest[0]


def test_requests_that_are_not_joined_have_no_sizes() -> None:
    arrivals = poisson(1.2 / cached(1), 60.0)
    stories = [
        SimulatedServer(limits, cached, believed(cached)).play(arrivals)
        for limits in (
            Limits(64, 4096, joinable=False),
            Limits(64, 4096, joinable=False, sizes=SIZES),
        )
    ]
    assert stories[0].latencies() == stories[1].latencies()


@pytest.mark.parametrize("clients", [1, 4])
def test_few_clients_have_no_trials(clients: int) -> None:
    """Nor any need of one: what they ask is measured as it comes."""
    story = SimulatedServer(LIMITS, cached, believed(cached)).loop(clients, SOON, 10.0)
    assert max(story.batches) <= clients


@pytest.mark.parametrize("cost", [cached, dense, even])
def test_trials_are_few_and_never_come_in_a_row(cost: Cost) -> None:
    size = BatchSize(believed(cost), SIZES)
    seen, since, tried, total = [], inf, 0.0, 0.0
    for _ in range(20_000):
        seconds = cost(size.next)
        total += seconds
        if size.next == size.best:
            since += 1
        else:
            seen.append((size.next, since))
            tried += seconds
            since = 0
        size.ended(size.next, seconds, 64)
    assert {trial for trial, _ in seen} == set(SIZES) - {size.best}
    assert all(pause >= (5 if trial > size.best else 1) for trial, pause in seen)
    assert tried <= 0.07 * total
