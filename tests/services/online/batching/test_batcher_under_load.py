"""Overload and recovery, in simulated time: the policy as it is, the model as a cost."""

import random
from math import inf

import pytest

from mlctl.core.errors import ErrorCode
from mlctl.services.online.batching.scheduler import Limits, Priority, QueueFullError
from tests.support.simulation import (
    Arrival,
    Cost,
    SimulatedServer,
    percentile,
    poisson,
)


def dense(rows: int) -> float:
    """A network of 20 MFLOP a row on one core: 4.6 times as fast in batches of 64."""
    return 0.0014 + 0.0002 * rows


def flat(_rows: int) -> float:
    """An accelerator that is not full: a batch costs the same whatever its size."""
    return 0.010


def steep(rows: int) -> float:
    """A transformer on one core, which gains next to nothing by batches."""
    return 0.003 + 0.0071 * rows


def lone(_rows: int) -> float:
    return 0.010


MODELS = [(dense, 64, True), (flat, 64, True), (steep, 32, True), (lone, 1, False)]
NAMES = ["dense", "flat", "steep", "not joined"]


def at_load(cost: Cost, rows: int, load: float, requests: int) -> list[Arrival]:
    rate = load * rows / cost(rows)
    return poisson(rate, requests / rate)


@pytest.mark.parametrize(("cost", "rows", "joinable"), MODELS, ids=NAMES)
def test_overload__three_times_the_capacity__accepted_requests_are_fast(
    cost: Cost, rows: int, joinable: bool
) -> None:
    limits = Limits(rows, 4096, joinable=joinable)
    half = SimulatedServer(limits, cost).play(at_load(cost, rows, 0.5, 8000))
    usual = percentile(half.latencies(), 0.99)
    arrivals = at_load(cost, rows, 3.0, 30_000)
    story = SimulatedServer(limits, cost).play(arrivals)
    settled = story.latencies(since=0.1 * arrivals[-1].moment)
    assert percentile(settled, 0.99) <= 2 * usual + cost(rows)
    assert len(story.answered) >= 0.9 * arrivals[-1].moment * rows / cost(rows)
    # Nobody was kept waiting in vain: who was not answered was refused when he came.
    assert len(story.answered) + len(story.refused) == len(arrivals)
    for _, error in story.refused:
        assert isinstance(error, QueueFullError)
        assert 0 < error.retry_after < 20 * cost(rows)


@pytest.mark.parametrize(("cost", "rows", "joinable"), MODELS, ids=NAMES)
@pytest.mark.parametrize("load", [0.3, 0.6])
def test_load__below_saturation__rejects_nothing(
    cost: Cost, rows: int, joinable: bool, load: float
) -> None:
    arrivals = at_load(cost, rows, load, 8000)
    story = SimulatedServer(Limits(rows, 4096, joinable=joinable), cost).play(arrivals)
    assert len(story.refused) <= (0 if joinable else 0.005 * len(arrivals))
    assert not story.expired


def test_burst__fits_the_queue__is_accepted() -> None:
    server = SimulatedServer(Limits(64, 4096), dense)
    story = server.play([Arrival(1.0 + number * 1e-6) for number in range(2000)])
    assert len(story.answered) == 2000


def test_overload__event_loop_was_late__is_remembered() -> None:
    """An event loop that was late finds the model idle and many requests at once."""

    def clump(pause: float) -> tuple[int, int]:
        server = SimulatedServer(Limits(64, 4096), dense)
        server.play(at_load(dense, 64, 3.0, 10_000))
        story = server.story
        over = max(end for _, end in story.answered)
        answered, refused = len(story.answered), len(story.refused)
        server.play([Arrival(over + pause) for _ in range(1000)])
        return len(story.answered) - answered, len(story.refused) - refused

    assert clump(0.001) == (65, 935)  # the one that finds it idle and a full batch
    assert clump(1.0) == (1000, 0)


def test_closed_loop__more_clients_than_a_batch__rejects_none() -> None:
    """Many more of them than a batch holds; each asks again once it was answered."""
    server, answered = SimulatedServer(Limits(8, 4096), dense), 0
    moment = 0.0
    while answered < 2000:
        story = server.play([Arrival(moment + number * 1e-6) for number in range(100)])
        answered = len(story.answered)
        moment = max(end for _, end in story.answered)
    assert not story.refused


@pytest.mark.parametrize(("clients", "sizes"), [(64, (1,)), (256, (1,)), (64, (1, 1, 1, 2, 5))])
@pytest.mark.parametrize("cost", [dense, flat, steep])
def test_closed_loop__requests_of_many_sizes__rejects_none(
    cost: Cost, clients: int, sizes: tuple[int, ...]
) -> None:
    """What is asked for goes up and down about what can be done, which is no overload."""
    server = SimulatedServer(Limits(32, 4096, inf), cost)
    story = server.loop(clients, 0.0004, 10.0, sizes=sizes)
    assert not story.refused
    assert sum(story.batches) >= 0.9 * 10.0 * 32 / cost(32)


@pytest.mark.parametrize("max_wait", [0.0, 0.02])
@pytest.mark.parametrize("cost", [dense, flat, steep])
def test_burst__has_ended__single_client_is_as_fast_as_before(cost: Cost, max_wait: float) -> None:
    server = SimulatedServer(Limits(32, 4096, max_wait), cost)
    before = [server.ask(0.1 * number) for number in range(20)]
    burst = poisson(3 * 32 / cost(32), 3.0, start=10.0)
    server.play(burst)
    # A server that may hold batches back waits for clients that it has answered just now.
    over = max(end for _, end in server.story.answered) + (0.1 if max_wait else 0.0)
    after = [server.ask(over + 0.1 * number) for number in range(10)]  # a second
    assert after == pytest.approx([cost(1)] * 10)
    assert sorted(after)[5] == pytest.approx(sorted(before)[10])


def test_max_wait__each_cost__adds_no_latency() -> None:
    def mean(cost: Cost, max_wait: float, load: float) -> float:
        server = SimulatedServer(Limits(8, 4096, max_wait), cost)
        latencies = server.play(poisson(load * 8 / cost(8), 20.0)).latencies()
        return sum(latencies) / len(latencies)

    for cost in (flat, steep):
        for load in (0.2, 0.5, 0.8):
            assert mean(cost, 0.02, load) <= 1.02 * mean(cost, 0.0, load)


def test_priority__normal_is_overloaded__high_is_fast() -> None:
    generator = random.Random(4)
    crowd = poisson(3 * 64 / dense(64), 3.0)
    arrivals = [
        Arrival(one.moment, priority=Priority.HIGH if generator.random() < 0.05 else one.priority)
        for one in crowd
    ]
    story = SimulatedServer(Limits(64, 4096), dense).play(arrivals)
    high = story.latencies(priority=Priority.HIGH, since=0.3)
    asked = sum(one.priority is Priority.HIGH for one in arrivals if one.moment >= 0.3)
    assert len(high) >= 0.4 * asked  # of the others a third
    # The batch that runs and its own; now and then one more, as the normal lane has its turn.
    assert percentile(high, 0.9) <= 2 * dense(64)
    assert high[-1] <= 3.1 * dense(64)


def test_deadline__cannot_be_met__costs_no_compute() -> None:
    server = SimulatedServer(Limits(1, 4096, max_queue=60.0), lone)
    arrivals = [Arrival(0.001 * number, timeout=0.035) for number in range(300)]
    story = server.play(arrivals)
    late = [end - one.moment for one, end in story.answered if end - one.moment > 0.035 + 1e-9]
    assert not late
    assert sum(story.batches) == len(story.answered)
    assert len(story.answered) >= 29  # the model was busy all the time
    assert {error.code for _, error in story.refused} == {ErrorCode.QUEUE_FULL}


def test_large_requests__more_than_the_queue_holds__leave_room_for_small_ones() -> None:
    """Clients with lists of 100 rows to rank, and some with a single row."""
    server = SimulatedServer(Limits(128, 4096, inf), dense)
    story = server.loop(120, 0.0004, 10.0, sizes=(100, 100, 1))
    assert {arrival.rows for arrival, _ in story.refused} == {100}
    assert all("the limit is 2048" in error.message for _, error in story.refused)
    # The queue of small requests alone is not limited by that.
    small = SimulatedServer(Limits(128, 4096, inf), dense)
    burst = [Arrival(1.0 + number * 1e-6) for number in range(4000)]
    assert len(small.play(burst).answered) == 4000


def test_large_request__empty_queue__is_accepted_up_to_the_whole_queue() -> None:
    server = SimulatedServer(Limits(128, 4096), dense)
    story = server.play([Arrival(1.0, 4096), Arrival(1.0, 4097)])
    assert [arrival.rows for arrival, _ in story.answered] == [4096]
    assert [error.code for _, error in story.refused] == [ErrorCode.PAYLOAD_TOO_LARGE]
