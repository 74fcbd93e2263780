import time

import pytest

from mlctl.core.clock import SystemClock
from tests.support.clock import ManualClock


def test_manual_clock__without_advance__stands_still() -> None:
    clock = ManualClock(5.0)
    assert (clock.monotonic(), clock.wall()) == (5.0, 5.0)
    clock.advance(1.5)
    assert (clock.monotonic(), clock.wall()) == (6.5, 6.5)


def test_manual_clock__negative_step__is_rejected() -> None:
    with pytest.raises(ValueError, match="backwards"):
        ManualClock().advance(-1)


def test_system_clock__read__is_the_machines() -> None:
    clock = SystemClock()
    before = time.monotonic()
    assert before <= clock.monotonic() <= time.monotonic()
    assert abs(clock.wall() - time.time()) < 60
