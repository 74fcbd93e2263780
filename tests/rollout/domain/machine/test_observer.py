from __future__ import annotations

from mlctl.bundle.latency import FIRST_TOKEN_EDGES_MS, TOKEN_EDGES_MS
from mlctl.rollout.domain.machine.observer import TrafficObserver
from mlctl.rollout.domain.shadow.agreement import ShadowWindow
from mlctl.rollout.domain.spec import RolloutSpec, Slot
from mlctl.rollout.domain.traffic.counts import AnswerTimes, Totals
from tests.support.memory import MemoryDataPlane

EDGES = (100.0, 200.0)


def observer(data_plane: MemoryDataPlane) -> TrafficObserver:
    return TrafficObserver(data_plane, EDGES, Slot.GREEN, RolloutSpec(max_p99_ms=200.0))


def test_observe__not_started__first_tick_has_no_window() -> None:
    data_plane = MemoryDataPlane(EDGES)
    data_plane.serve(Slot.GREEN, 10)
    watching = observer(data_plane)
    assert watching.observe(alive=True)[0].window is None
    data_plane.serve(Slot.GREEN, 5, errors=1, slow=2)
    window = watching.observe(alive=True)[0].window
    assert window is not None
    assert (window.candidate.requests, window.candidate.errors, window.candidate.slow) == (5, 1, 2)


def test_observe__started_twice__counts_from_the_first_start() -> None:
    data_plane = MemoryDataPlane(EDGES)
    data_plane.serve(Slot.GREEN, 10)
    watching = observer(data_plane)
    watching.start()
    data_plane.serve(Slot.GREEN, 5)
    watching.start()
    window = watching.observe(alive=True)[0].window
    assert window is not None
    assert window.candidate.requests == 5


def test_observe__second_tick__reference_is_the_earlier_live_p99() -> None:
    data_plane = MemoryDataPlane(EDGES)
    watching = observer(data_plane)
    watching.start()
    data_plane.serve(Slot.BLUE, 200)
    assert watching.observe(alive=True)[1] is None
    data_plane.serve(Slot.GREEN, 10, slow=4)
    observation, reference = watching.observe(alive=True)
    assert reference == 100.0
    assert observation.window is not None
    assert observation.window.candidate.tail == 4


def test_observe__restarted_proxy__has_no_window() -> None:
    data_plane = MemoryDataPlane(EDGES)
    data_plane.serve(Slot.BLUE, 10)
    watching = observer(data_plane)
    watching.start()
    data_plane.totals.clear()
    data_plane.serve(Slot.BLUE, 3)
    assert watching.observe(alive=True)[0].window is None


def test_observe__unhealthy_or_dead__is_in_the_observation() -> None:
    data_plane = MemoryDataPlane(EDGES)
    data_plane.healthy[Slot.GREEN] = False
    observation, _ = observer(data_plane).observe(alive=False)
    assert (observation.healthy, observation.alive) == (False, False)


class Pairs:
    """A comparison that notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def observe(self, live_requests: int) -> ShadowWindow:
        self.asked.append(live_requests)
        return ShadowWindow(requests=live_requests)


def test_observe__candidate_with_copies_only__counts_the_copies() -> None:
    data_plane = MemoryDataPlane(EDGES)
    data_plane.shadow[Slot.GREEN] = Totals(10, 0, 10, (10, 10))
    watching = observer(data_plane)
    watching.start()
    data_plane.serve(Slot.BLUE, 20)
    data_plane.serve(Slot.GREEN, 3)
    data_plane.shadow[Slot.GREEN] = Totals(17, 2, 17, (13, 16))
    window = watching.observe(alive=True, mirrored=True, weight=0)[0].window
    assert window is not None
    assert (window.candidate.requests, window.candidate.errors, window.candidate.slow) == (7, 2, 1)
    data_plane.shadow[Slot.GREEN] = Totals(30, 2, 30, (26, 29))
    data_plane.serve(Slot.GREEN, 4)
    window = watching.observe(alive=True, mirrored=True, weight=5)[0].window
    assert window is not None
    assert window.candidate.requests == 4


def test_observe__proxy_never_mirrored__has_no_copies() -> None:
    data_plane = MemoryDataPlane(EDGES)
    watching = observer(data_plane)
    watching.start()
    window = watching.observe(alive=True, mirrored=True, weight=0)[0].window
    assert window is not None
    assert window.candidate.requests == 0


def test_observe__copies_are_sent__compares_answers() -> None:
    data_plane, pairs = MemoryDataPlane(EDGES), Pairs()
    watching = TrafficObserver(data_plane, EDGES, Slot.GREEN, RolloutSpec(), pairs.observe)
    watching.start()
    data_plane.serve(Slot.BLUE, 20)
    assert watching.observe(alive=True)[0].shadow is None
    data_plane.serve(Slot.BLUE, 5)
    assert watching.observe(alive=True, mirrored=True)[0].shadow == ShadowWindow(requests=5)
    assert pairs.asked == [5]


def test_observe__median_limit__is_counted_apart() -> None:
    data_plane = MemoryDataPlane(EDGES)
    spec = RolloutSpec(max_p50_ms=100.0, max_p99_ms=200.0)
    watching = TrafficObserver(data_plane, EDGES, Slot.GREEN, spec)
    watching.start()
    data_plane.totals[Slot.GREEN] = Totals(10, 0, 10, (4, 9))
    window = watching.observe(alive=True)[0].window
    assert window is not None
    assert (window.candidate.late, window.candidate.slow) == (6, 1)


def test_answers__servers_time_them__those_beyond_the_limits_are_counted() -> None:
    data_plane = MemoryDataPlane(EDGES)
    spec = RolloutSpec(max_ttft_ms=500.0, max_tpot_ms=50.0)
    watching = TrafficObserver(data_plane, EDGES, Slot.GREEN, spec)
    data_plane.answers = {Slot.GREEN: generated(10, late=1, slow=0)}
    watching.start()
    data_plane.answers = {Slot.GREEN: generated(30, late=4, slow=5)}
    counts = watching.observe(alive=True)[0].window
    data_plane.answers = {Slot.GREEN: generated(2, late=2, slow=2)}  # a server was restarted
    restarted = watching.observe(alive=True)[0].window

    assert counts is not None
    candidate = counts.candidate
    assert (candidate.begun, candidate.late_first) == (20, 3)
    assert (candidate.continued, candidate.slow_tokens) == (20, 5)
    assert restarted is not None
    assert restarted.candidate.begun == 0


def generated(answers: int, late: int, slow: int) -> AnswerTimes:
    """Times of answers, of which some are beyond 500 ms, and 50 ms for each token."""

    def totals(edges: tuple[float, ...], limit: float, beyond: int) -> Totals:
        within = tuple(answers if edge > limit else answers - beyond for edge in edges)
        return Totals(timed=answers, within=within)

    return AnswerTimes(
        totals(FIRST_TOKEN_EDGES_MS, 500.0, late), totals(TOKEN_EDGES_MS, 50.0, slow)
    )
