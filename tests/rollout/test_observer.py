from __future__ import annotations

from rollout.memory import MemoryPlane
from rollout.model import Colour, RolloutSpec
from rollout.observer import Observer

EDGES = (100.0, 200.0)


def observer(plane: MemoryPlane) -> Observer:
    return Observer(plane, EDGES, Colour.GREEN, RolloutSpec(max_p99_ms=200.0))


def test_without_a_start_the_first_look_has_no_window() -> None:
    plane = MemoryPlane(EDGES)
    plane.serve(Colour.GREEN, 10)
    watching = observer(plane)
    assert watching.look(alive=True)[0].window is None
    plane.serve(Colour.GREEN, 5, errors=1, slow=2)
    window = watching.look(alive=True)[0].window
    assert window is not None
    assert (window.candidate.requests, window.candidate.errors, window.candidate.slow) == (5, 1, 2)


def test_counting_begins_at_the_start_and_only_once() -> None:
    plane = MemoryPlane(EDGES)
    plane.serve(Colour.GREEN, 10)
    watching = observer(plane)
    watching.start()
    plane.serve(Colour.GREEN, 5)
    watching.start()
    window = watching.look(alive=True)[0].window
    assert window is not None
    assert window.candidate.requests == 5


def test_the_reference_is_the_live_p99_before_this_look() -> None:
    plane = MemoryPlane(EDGES)
    watching = observer(plane)
    watching.start()
    plane.serve(Colour.BLUE, 200)
    assert watching.look(alive=True)[1] is None
    plane.serve(Colour.GREEN, 10, slow=4)
    look, reference = watching.look(alive=True)
    assert reference == 100.0
    assert look.window is not None
    assert look.window.candidate.tail == 4


def test_a_restarted_proxy_gives_no_window() -> None:
    plane = MemoryPlane(EDGES)
    plane.serve(Colour.BLUE, 10)
    watching = observer(plane)
    watching.start()
    plane.totals.clear()
    plane.serve(Colour.BLUE, 3)
    assert watching.look(alive=True)[0].window is None


def test_health_and_life_are_passed_on() -> None:
    plane = MemoryPlane(EDGES)
    plane.healthy[Colour.GREEN] = False
    look, _ = observer(plane).look(alive=False)
    assert (look.healthy, look.alive) == (False, False)
