import pytest

from bundle.errors import ErrorCode, MlctlError
from services.batcher import Batcher, Limits, QueueFullError, Ticket

FAR = 1000.0


def batcher(*, rows: int = 4, queue: int = 8, wait: float = 0.0, joinable: bool = True) -> Batcher:
    return Batcher(Limits(rows, queue, wait, joinable))


def numbers(batch: list[Ticket]) -> list[int]:
    return [ticket.number for ticket in batch]


def test_an_idle_server_answers_at_once_whatever_the_wait() -> None:
    policy = batcher(wait=0.5)
    policy.offer(1, "k", 0.0, FAR)
    assert numbers(policy.release(0.0)) == [0]


def test_one_batch_runs_at_a_time() -> None:
    policy = batcher()
    policy.offer(1, "k", 0.0, FAR)
    policy.release(0.0)
    policy.offer(1, "k", 0.0, FAR)
    assert policy.release(0.0) == []
    policy.finished(0.01)
    assert numbers(policy.release(0.01)) == [1]


def test_a_busy_server_waits_for_company_until_max_wait() -> None:
    policy = batcher(wait=0.5)
    policy.offer(1, "k", 0.0, FAR)
    policy.release(0.0)
    policy.offer(1, "k", 0.1, FAR)
    policy.finished(0.2)
    assert policy.release(0.2) == []
    assert policy.next_event() == pytest.approx(0.6)
    assert numbers(policy.release(0.6)) == [1]


def test_a_full_batch_does_not_wait() -> None:
    policy = batcher(rows=2, wait=0.5)
    policy.offer(1, "k", 0.0, FAR)
    policy.release(0.0)
    policy.offer(1, "k", 0.1, FAR)
    policy.offer(1, "k", 0.1, FAR)
    policy.finished(0.1)
    assert numbers(policy.release(0.1)) == [1, 2]


def test_rows_never_exceed_the_limit_and_order_is_kept() -> None:
    policy = batcher(rows=4)
    for rows in (3, 2, 1):
        policy.offer(rows, "k", 0.0, FAR)
    assert numbers(policy.release(0.0)) == [0]
    policy.finished(0.1)
    assert numbers(policy.release(0.1)) == [1, 2]


def test_a_request_above_the_limit_runs_alone() -> None:
    policy = batcher(rows=4)
    policy.offer(6, "k", 0.0, FAR)
    policy.offer(1, "k", 0.0, FAR)
    assert numbers(policy.release(0.0)) == [0]


def test_other_shapes_and_dependent_rows_are_not_joined() -> None:
    policy = batcher()
    for key in ("a", "b", "a"):
        policy.offer(1, key, 0.0, FAR)
    assert numbers(policy.release(0.0)) == [0, 2]
    alone = batcher(joinable=False)
    alone.offer(1, "k", 0.0, FAR)
    alone.offer(1, "k", 0.0, FAR)
    assert numbers(alone.release(0.0)) == [0]


def test_a_full_queue_says_when_to_come_back() -> None:
    policy = batcher(rows=4, queue=8)
    policy.offer(4, "k", 0.0, FAR)
    policy.release(0.0)
    policy.finished(2.0)
    policy.offer(4, "k", 2.0, FAR)
    policy.release(2.0)
    policy.offer(8, "k", 2.0, FAR)
    with pytest.raises(QueueFullError) as caught:
        policy.offer(1, "k", 2.0, FAR)
    assert caught.value.retry_after == pytest.approx(6.0)  # one batch runs and two wait
    assert caught.value.code is ErrorCode.QUEUE_FULL


def test_what_can_never_fit_is_too_large() -> None:
    with pytest.raises(MlctlError) as caught:
        batcher(queue=8).offer(9, "k", 0.0, FAR)
    assert caught.value.code is ErrorCode.PAYLOAD_TOO_LARGE


def test_deadlines_pass_while_waiting_and_while_running() -> None:
    policy = batcher(rows=1)
    running = policy.offer(1, "k", 0.0, 1.0)
    policy.release(0.0)
    waiting = policy.offer(1, "k", 0.0, 2.0)
    assert policy.next_event() == 1.0
    assert policy.expire(0.9) == []
    assert policy.expire(1.0) == [running]
    assert policy.busy
    assert policy.expire(2.0) == [waiting]
    assert policy.waiting_rows == 0
    assert policy.expire(3.0) == []
    with pytest.raises(MlctlError) as caught:
        policy.offer(1, "k", 3.0, 3.0)
    assert caught.value.code is ErrorCode.DEADLINE_EXCEEDED


def test_who_left_is_not_run() -> None:
    policy = batcher()
    left = policy.offer(2, "k", 0.0, FAR)
    policy.offer(1, "k", 0.0, FAR)
    assert policy.cancel(left)
    assert numbers(policy.release(0.0)) == [1]
    assert not policy.cancel(left)


def test_answered_requests_do_not_pile_up() -> None:
    policy = batcher()
    for turn in range(2000):
        policy.offer(1, "k", float(turn), turn + 1e6)
        policy.release(float(turn))
        policy.finished(0.001)
    assert len(policy._deadlines) < 600
    assert policy.next_event() is None
