"""Turns of requests that run in steps."""

import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.online.batching.admission import Limits, QueueFullError
from mlctl.services.online.batching.scheduler import MAX_CONSECUTIVE_HIGH, Ticket
from mlctl.services.online.batching.step_scheduler import StepScheduler
from mlctl.services.protocol.priority import Priority

FAR = 100.0


def scheduler(queue: int = 100, max_open: int = 8) -> StepScheduler:
    return StepScheduler(Limits(8, queue), max_open)


def offer(
    policy: StepScheduler,
    rows: int,
    now: float,
    deadline: float,
    priority: Priority = Priority.NORMAL,
) -> Ticket:
    ticket = Ticket(rows, None, now, deadline, priority)
    policy.offer(ticket)
    return ticket


def turns(policy: StepScheduler, count: int) -> list[int]:
    """Whose steps run, if each request has more of them."""
    ran = []
    for _ in range(count):
        ticket = policy.release()
        assert ticket is not None
        ran.append(ticket.number)
        policy.stepped(FAR)
    return ran


def test_steps__several_requests__take_turns_in_order() -> None:
    policy = scheduler()
    for _ in range(3):
        offer(policy, 2, 0.0, FAR)
    assert turns(policy, 7) == [0, 1, 2, 0, 1, 2, 0]
    assert policy.waiting_rows == 6
    for _ in range(3):
        policy.release()
        policy.stepped()
    assert policy.release() is None
    assert (policy.waiting_rows, policy.next_event()) == (0, None)


def test_steps__one_is_running__the_others_wait() -> None:
    policy = scheduler()
    offer(policy, 2, 0.0, FAR)
    offer(policy, 2, 0.0, FAR)
    assert policy.release() is not None
    assert policy.busy
    assert policy.release() is None


def test_steps__high_priority__has_most_turns_and_the_other_one_some() -> None:
    policy = scheduler()
    offer(policy, 1, 0.0, FAR)
    offer(policy, 1, 0.0, FAR, Priority.HIGH)
    expected = ([1] * MAX_CONSECUTIVE_HIGH + [0]) * 2
    assert turns(policy, len(expected)) == expected


def test_parked__reader_is_behind__has_no_turn_and_a_deadline_of_its_own() -> None:
    policy = scheduler()
    ticket = offer(policy, 1, 0.0, 10.0)
    assert policy.release() == ticket
    policy.stepped(20.0, parked=True)
    assert policy.release() is None
    assert policy.expire(15.0) == []
    assert policy.next_event() == 20.0
    assert policy.resume(ticket, 30.0)
    assert not policy.resume(ticket, 99.0)
    resumed = policy.release()
    assert resumed is not None
    assert resumed.number == ticket.number
    assert policy.expire(25.0) == []
    assert policy.expire(30.0) == [resumed]  # while its step runs
    policy.stepped(40.0)
    assert policy.release() is None
    assert policy.next_event() is None


def test_offer__at_a_limit__is_rejected() -> None:
    policy = scheduler(queue=10, max_open=2)
    offer(policy, 8, 0.0, FAR)
    with pytest.raises(QueueFullError, match="8 rows wait already, the limit is 10") as full:
        offer(policy, 3, 0.0, FAR)
    assert full.value.retry_after > 0
    offer(policy, 2, 0.0, FAR)
    with pytest.raises(QueueFullError, match="2 streams are open already, the limit is 2"):
        offer(policy, 1, 0.0, FAR)
    for rows, deadline, code in (
        (11, FAR, ErrorCode.PAYLOAD_TOO_LARGE),
        (1, 0.0, ErrorCode.DEADLINE_EXCEEDED),
    ):
        with pytest.raises(MlctlError) as caught:
            offer(scheduler(queue=10), rows, 0.0, deadline)
        assert caught.value.code is code
