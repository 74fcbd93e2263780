from __future__ import annotations

from rollout.domain.counts import Totals
from rollout.domain.observer import TrafficObserver
from rollout.domain.shadow_window import ShadowWindow
from rollout.domain.spec import RolloutSpec, Slot
from tests.support.memory import MemoryPlane

EDGES = (100.0, 200.0)


def observer(plane: MemoryPlane) -> TrafficObserver:
    return TrafficObserver(plane, EDGES, Slot.GREEN, RolloutSpec(max_p99_ms=200.0))


def test_without_a_start_the_first_look_has_no_window() -> None:
    plane = MemoryPlane(EDGES)
    plane.serve(Slot.GREEN, 10)
    watching = observer(plane)
    assert watching.look(alive=True)[0].window is None
    plane.serve(Slot.GREEN, 5, errors=1, slow=2)
    window = watching.look(alive=True)[0].window
    assert window is not None
    assert (window.candidate.requests, window.candidate.errors, window.candidate.slow) == (5, 1, 2)


def test_counting_begins_at_the_start_and_only_once() -> None:
    plane = MemoryPlane(EDGES)
    plane.serve(Slot.GREEN, 10)
    watching = observer(plane)
    watching.start()
    plane.serve(Slot.GREEN, 5)
    watching.start()
    window = watching.look(alive=True)[0].window
    assert window is not None
    assert window.candidate.requests == 5


def test_the_reference_is_the_live_p99_before_this_look() -> None:
    plane = MemoryPlane(EDGES)
    watching = observer(plane)
    watching.start()
    plane.serve(Slot.BLUE, 200)
    assert watching.look(alive=True)[1] is None
    plane.serve(Slot.GREEN, 10, slow=4)
    look, reference = watching.look(alive=True)
    assert reference == 100.0
    assert look.window is not None
    assert look.window.candidate.tail == 4


def test_a_restarted_proxy_gives_no_window() -> None:
    plane = MemoryPlane(EDGES)
    plane.serve(Slot.BLUE, 10)
    watching = observer(plane)
    watching.start()
    plane.totals.clear()
    plane.serve(Slot.BLUE, 3)
    assert watching.look(alive=True)[0].window is None


def test_without_a_comparison_nothing_is_kept() -> None:
    watching = observer(MemoryPlane(EDGES))
    watching.end_comparison()
    assert watching.kept() is None


def test_health_and_life_are_passed_on() -> None:
    plane = MemoryPlane(EDGES)
    plane.healthy[Slot.GREEN] = False
    look, _ = observer(plane).look(alive=False)
    assert (look.healthy, look.alive) == (False, False)


class Pairs:
    """A comparison that notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.ended = 0

    def look(self, live_requests: int) -> ShadowWindow:
        self.asked.append(live_requests)
        return ShadowWindow(requests=live_requests)

    def end(self) -> None:
        self.ended += 1

    def kept(self) -> str | None:
        return "1.parquet"


def test_a_candidate_with_copies_only_is_judged_by_them() -> None:
    plane = MemoryPlane(EDGES)
    plane.shadow[Slot.GREEN] = Totals(10, 0, 10, (10, 10))
    watching = observer(plane)
    watching.start()
    plane.serve(Slot.BLUE, 20)
    plane.serve(Slot.GREEN, 3)
    plane.shadow[Slot.GREEN] = Totals(17, 2, 17, (13, 16))
    window = watching.look(alive=True, mirrored=True, weight=0)[0].window
    assert window is not None
    assert (window.candidate.requests, window.candidate.errors, window.candidate.slow) == (7, 2, 1)
    plane.shadow[Slot.GREEN] = Totals(30, 2, 30, (26, 29))
    plane.serve(Slot.GREEN, 4)
    window = watching.look(alive=True, mirrored=True, weight=5)[0].window
    assert window is not None
    assert window.candidate.requests == 4


def test_a_plane_that_never_mirrored_has_no_copies() -> None:
    plane = MemoryPlane(EDGES)
    watching = observer(plane)
    watching.start()
    window = watching.look(alive=True, mirrored=True, weight=0)[0].window
    assert window is not None
    assert window.candidate.requests == 0


def test_answers_are_compared_while_copies_are_sent() -> None:
    plane, pairs = MemoryPlane(EDGES), Pairs()
    watching = TrafficObserver(plane, EDGES, Slot.GREEN, RolloutSpec(), pairs)
    watching.start()
    plane.serve(Slot.BLUE, 20)
    assert watching.look(alive=True)[0].shadow is None
    plane.serve(Slot.BLUE, 5)
    assert watching.look(alive=True, mirrored=True)[0].shadow == ShadowWindow(requests=5)
    assert pairs.asked == [5]
    watching.end_comparison()
    assert pairs.ended == 1
    assert watching.kept() == "1.parquet"


def test_the_median_is_counted_at_its_own_limit() -> None:
    plane = MemoryPlane(EDGES)
    spec = RolloutSpec(max_p50_ms=100.0, max_p99_ms=200.0)
    watching = TrafficObserver(plane, EDGES, Slot.GREEN, spec)
    watching.start()
    plane.totals[Slot.GREEN] = Totals(10, 0, 10, (4, 9))
    window = watching.look(alive=True)[0].window
    assert window is not None
    assert (window.candidate.late, window.candidate.slow) == (6, 1)
