from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mlctl.services.online.observability.backlog import Backlog


def test_backlog__above_its_limits__drops_and_counts() -> None:
    backlog = Backlog[str](2, max_bytes=10)
    backlog.put("a", 6)
    backlog.put("b", 5)  # too large beside the first
    backlog.put("c", 4)
    backlog.put("d")  # one too many
    assert backlog.take() == ["a", "c"]
    assert backlog.dropped == 2
    backlog.put("e", 1)  # what was taken is held still
    backlog.free(10)
    backlog.put("f", 10)
    assert (backlog.take(), backlog.dropped) == (["f"], 3)


@given(st.lists(st.integers(0, 40) | st.none(), max_size=60))
def test_backlog__any_steps__stays_within_bounds(steps: list[int | None]) -> None:
    backlog = Backlog[int](5, max_bytes=100)
    put, taken, held = 0, 0, 0
    for step in steps:
        if step is None:
            found = backlog.take()
            taken += len(found)
            backlog.free(sum(found))
            held = 0
        else:
            before = backlog.dropped
            backlog.put(step, step)
            put += 1
            held += step * (backlog.dropped == before)
        assert held <= 100
    assert taken + len(backlog.take()) + backlog.dropped == put
