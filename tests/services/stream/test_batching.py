"""When a batch begins, how large it is, what may wait, and how many dead letters are too many."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlctl.services.stream.base import Message
from mlctl.services.stream.batching import (
    BatchGoals,
    BatchingWindow,
    DeadLetterLimit,
    MessageBuffer,
)


def messages(first: int, last: int, size: int = 1, partition: str = "0") -> list[Message]:
    return [Message(partition, n, b"x" * size) for n in range(first, last)]


def trained(goals: BatchGoals, fixed_s: float, each_s: float, batches: int = 40) -> BatchingWindow:
    """A window that has seen batches of its own size, of that cost."""
    window = BatchingWindow(goals)
    for _ in range(batches):
        window.observe(window.limit, fixed_s + each_s * window.limit)
    return window


def test_batch_size__latency_goal__is_as_large_as_it_allows() -> None:
    slow = trained(BatchGoals(latency_s=0.1), 0.002, 100e-6)
    assert slow.limit * 100e-6 + 0.002 <= 0.04
    assert slow.limit >= 128
    assert trained(BatchGoals(latency_s=0.1), 0.002, 1e-6).limit == 8192
    assert trained(BatchGoals(latency_s=0.1, messages=100), 0.002, 1e-6).limit == 100
    assert trained(BatchGoals(latency_s=0.1, messages=5000), 0.002, 1e-6).limit == 5000
    # Two messages together are done before two batches of one.
    assert trained(BatchGoals(latency_s=0.01), 0.5, 1.0).limit == 2


def test_batch_size__commit_takes_longer_than_the_goal__keeps_up_with_large_batches() -> None:
    for first in (1, 10, 256):
        window = BatchingWindow(BatchGoals(latency_s=0.1))
        window.observe(first, 0.06)
        for _ in range(40):
            window.observe(window.limit, 0.06 + 1e-6 * window.limit)
        assert window.limit == 8192, first


def test_linger__batch_duration_and_goal__limit_the_wait() -> None:
    window = trained(BatchGoals(latency_s=0.1), 0.004, 1e-6)
    assert 0.0 < window.linger(1) <= 0.025
    assert window.linger(window.limit) == 0.0
    assert trained(BatchGoals(latency_s=0.1), 3.0, 0.0).linger(0) == pytest.approx(0.025)
    assert BatchingWindow(BatchGoals()).linger(1) == 0.0, "nothing was measured yet"


def test_batch_size__slower_model__shrinks() -> None:
    window = trained(BatchGoals(latency_s=0.1), 0.001, 1e-6)
    large = window.limit
    for _ in range(8):
        window.observe(large, 1.0)
    assert window.limit < large


def test_batch_size__one_stall_of_a_new_size__is_measured_again() -> None:
    window = BatchingWindow(BatchGoals(latency_s=0.1))
    window.observe(256, 0.003)
    window.observe(512, 5.0)
    assert window.limit == 256
    for _ in range(60):
        window.observe(window.limit, 0.002 + 1e-6 * window.limit)
    assert window.limit == 8192


def test_backlog__full__is_filled_again_below_its_half() -> None:
    window = BatchingWindow(BatchGoals())
    buffer = MessageBuffer(window)
    assert buffer.room() == window.high_water
    buffer.add(messages(0, window.high_water), 0.0)
    assert buffer.room() == 0
    buffer.take()
    assert buffer.room() == 0, "not at once"
    buffer.take()
    assert buffer.room() == window.high_water - 2 * window.limit


def test_backlog__large_messages__count_by_their_bytes() -> None:
    buffer = MessageBuffer(BatchingWindow(BatchGoals(size=1000)))
    buffer.add(messages(0, 100, size=100), 0.0)
    assert buffer.room() == 0
    taken, _since = buffer.take()
    assert len(taken) == 10
    alone = MessageBuffer(BatchingWindow(BatchGoals(size=10)))
    alone.add(messages(0, 2, size=100), 0.0)
    assert len(alone.take()[0]) == 1


def test_linger__batch__is_as_old_as_its_oldest_message() -> None:
    buffer = MessageBuffer(BatchingWindow(BatchGoals(messages=4)))
    buffer.add(messages(0, 3), 1.0)
    buffer.add(messages(3, 6), 2.0)
    taken, since = buffer.take()
    assert ([each.offset for each in taken], since) == ([0, 1, 2, 3], 1.0)
    assert buffer.since == 2.0
    buffer.drop({"0"})
    assert len(buffer) == 0


def test_backlog__revoked_partition__loses_its_messages_only() -> None:
    buffer = MessageBuffer(BatchingWindow(BatchGoals()))
    buffer.add(messages(0, 3, partition="a") + messages(0, 2, partition="b"), 1.0)
    buffer.drop(["a"])
    assert {each.partition for each in buffer.take()[0]} == {"b"}


@given(st.lists(st.tuples(st.integers(1, 50), st.floats(0, 1)), max_size=60))
def test_dead_rate__many_messages__counts_the_newest(batches: list[tuple[int, float]]) -> None:
    rate, history = DeadLetterLimit(0.1, newest=100, free=4), list[bool]()
    for count, share in batches:
        dead = int(share * count)
        room = rate.room(count)
        if dead > room:
            newest = (history + [True] * dead + [False] * (count - dead))[-149:]
            assert sum(newest) >= 5, "so few tell nothing"
            return
        rate.observe(count, dead)
        history += [True] * dead + [False] * (count - dead)
    assert sum(history[-100:]) <= 0.1 * 149 + 5


def test_dead_rate__poisoned_stream__is_stopped_and_one_percent_is_not() -> None:
    rate = DeadLetterLimit(0.1)
    for _ in range(1000):
        assert rate.room(100) >= 1
        rate.observe(100, 1)
    assert rate.room(1000) < 1000
    assert DeadLetterLimit(0.1).room(19) >= 19, "too few to judge"
    assert DeadLetterLimit(1.0).room(5000) == 5000
    assert DeadLetterLimit(0.0).room(5000) == 19
