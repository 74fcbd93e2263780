"""Waiting for those who were just answered, in simulated time: where it pays, and only there."""

from math import inf

import pytest

from mlctl.services.model.batch_costs import BatchCosts
from mlctl.services.online.batching.linger import LingerHeuristic
from mlctl.services.online.batching.scheduler import Limits
from tests.services.online.batching.test_batcher_under_load import dense, flat, steep
from tests.support.simulation import Cost, SimulatedServer, Story, percentile, poisson

SECONDS = 3.0
SOON = 0.0003


def server(cost: Cost, rows: int, *, linger: bool) -> SimulatedServer:
    return SimulatedServer(Limits(rows, 4096, inf if linger else 0.0), cost)


def gathering_of(measured: dict[int, float], rows: int) -> LingerHeuristic:
    return LingerHeuristic(BatchCosts(measured), rows)


def mean(story: Story) -> float:
    latencies = story.latencies(since=1.0)
    return sum(latencies) / len(latencies)


@pytest.mark.parametrize(
    ("cost", "rows", "clients", "times"),
    [
        *[(dense, 64, 64, 1.05), (dense, 64, 16, 1.15), (dense, 64, 2, 1.4)],
        *[(flat, 64, 64, 1.8), (flat, 64, 2, 1.8), (steep, 32, 16, 1.0)],
    ],
)
def test_linger__closed_loop_clients__share_one_batch(
    cost: Cost, rows: int, clients: int, times: float
) -> None:
    """Without, the two halves of them take turns for ever."""
    apart, together = (
        server(cost, rows, linger=linger).loop(clients, SOON, SECONDS) for linger in (False, True)
    )
    assert len(together.answered) >= times * len(apart.answered)
    settled = together.batches[len(together.batches) // 2 : -10]
    assert sum(settled) / len(settled) >= 0.9 * clients
    # Nor does anybody pay for it: all wait for one batch and not for two.
    usual = percentile(apart.latencies(since=1.0), 0.99)
    assert percentile(together.latencies(since=1.0), 0.99) <= usual


@pytest.mark.parametrize(("cost", "rows"), [(dense, 64), (flat, 64), (steep, 32)])
@pytest.mark.parametrize("load", [0.1, 0.5, 0.9])
def test_linger__random_arrivals__add_little_latency(cost: Cost, rows: int, load: float) -> None:
    rate = load * rows / cost(rows)
    arrivals = poisson(rate, max(4.0, 2000 / rate))
    apart, together = (server(cost, rows, linger=linger).play(arrivals) for linger in (False, True))
    assert mean(together) <= 1.03 * mean(apart)


@pytest.mark.parametrize("clients", [1, 2, 16, 64])
def test_linger__slow_clients__are_not_waited_for(clients: int) -> None:
    apart, together = (
        server(dense, 64, linger=linger).loop(clients, 0.05, SECONDS) for linger in (False, True)
    )
    assert mean(together) <= 1.03 * mean(apart)


def test_linger__single_client__never_waits() -> None:
    crowd = server(dense, 64, linger=True)
    crowd.loop(16, SOON, 2.0)  # it has learned that waiting pays
    alone = [crowd.ask(3.0 + 0.1 * number) for number in range(20)]
    assert alone == pytest.approx([dense(1)] * 20)


def test_linger__clients_left__soon_stops_waiting() -> None:
    crowd = server(dense, 64, linger=True)
    crowd.loop(64, SOON, 2.0)
    known = len(crowd.story.answered)
    crowd.play(poisson(0.5 * 64 / dense(64), 2.0, start=3.0))
    latencies = [end - one.moment for one, end in crowd.story.answered[known:]]
    fresh = server(dense, 64, linger=False).play(poisson(0.5 * 64 / dense(64), 2.0, start=3.0))
    usual = fresh.latencies()
    assert sum(latencies) / len(latencies) <= 1.03 * sum(usual) / len(usual)


def test_linger_until__all_clients_back__ends_the_wait() -> None:
    gathering = gathering_of({1: 0.010, 8: 0.010}, 8)
    gathering.ended(2, 1.0)
    assert gathering.until(1, 1.0) == pytest.approx(1.0025)  # a quarter of a batch's time
    gathering.arrived(1, 1.002)
    assert gathering.until(2, 1.002) == pytest.approx(1.0045)
    gathering.arrived(1, 1.003)
    assert gathering.until(3, 1.003) == -inf


def test_linger_until__batch_is_full__does_not_wait() -> None:
    gathering = gathering_of({1: 0.010, 8: 0.010}, 8)
    gathering.ended(8, 1.0)
    assert gathering.until(8, 1.0) == -inf


def test_linger_until__useless_wait__is_rarely_repeated() -> None:
    gathering = gathering_of({1: 0.010, 8: 0.010}, 8)
    waits = []
    for number in range(40):
        gathering.ended(2, float(number))
        waits.append(gathering.until(1, float(number)) > number)
        gathering.released(number + 0.0025)
    assert waits[0]
    assert sum(waits) == 3  # one chance in seventeen


@pytest.mark.parametrize("linger", [False, True])
@pytest.mark.parametrize(("cost", "rows", "clients"), [(steep, 32, 40), (dense, 64, 70)])
def test_linger__more_clients_than_a_batch__rejects_none(
    cost: Cost, rows: int, clients: int, linger: bool
) -> None:
    """Somewhat more of them than a batch holds: long and short batches in turn."""
    story = server(cost, rows, linger=linger).loop(clients, SOON, SECONDS)
    assert not story.refused
