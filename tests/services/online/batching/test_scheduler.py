import gc
from collections.abc import Mapping
from math import inf

import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.model.batch_costs import NOTHING_MEASURED, BatchCosts
from mlctl.services.online.batching.scheduler import (
    BatchScheduler,
    Limits,
    Priority,
    QueueFullError,
    Ticket,
)

FAR = 1000.0
FLAT = {1: 1.0, 4: 1.0}  # what a batch costs on an accelerator that is not full
LINEAR = {1: 1.0, 4: 4.0}


def batcher(
    *,
    rows: int = 4,
    queue: int = 8,
    wait: float = 0.0,
    joinable: bool = True,
    max_queue: float | None = None,
    costs: Mapping[int, float] = NOTHING_MEASURED,
) -> BatchScheduler[Ticket]:
    return BatchScheduler(Limits(rows, queue, wait, joinable, max_queue), BatchCosts(costs))


def offer(
    policy: BatchScheduler[Ticket],
    rows: int,
    key: str,
    now: float,
    deadline: float,
    priority: Priority = Priority.NORMAL,
    *,
    part: bool = False,
) -> Ticket:
    ticket = Ticket(rows, key, now, deadline, priority)
    if part:
        policy.offer(ticket, part=True)
    else:
        policy.offer(ticket)
    return ticket


def busy(**options: object) -> BatchScheduler[Ticket]:
    """A batcher whose first request, number 0, is running since 0.0."""
    policy = batcher(**options)  # type: ignore[arg-type]
    offer(policy, 1, "k", 0.0, FAR)
    assert numbers(policy.release(0.0)) == [0]
    return policy


def numbers(batch: list[Ticket]) -> list[int]:
    return [ticket.number for ticket in batch]


def test_release__idle_server__runs_at_once() -> None:
    policy = batcher(wait=0.5)
    offer(policy, 1, "k", 0.0, FAR)
    assert numbers(policy.release(0.0)) == [0]


def test_release__batch_is_running__waits_for_it() -> None:
    policy = batcher()
    offer(policy, 1, "k", 0.0, FAR)
    policy.release(0.0)
    offer(policy, 1, "k", 0.0, FAR)
    assert policy.release(0.0) == []
    policy.finished(0.01)
    assert numbers(policy.release(0.01)) == [1]


def after_a_batch(
    wait: float, *more: int, deadline: float = FAR, costs: Mapping[int, float] = FLAT
) -> BatchScheduler[Ticket]:
    """Four clients were answered at 1.0 and may send again; others wait since 0.9.

    Those are one row, or requests of `more` rows.
    """
    policy = batcher(rows=8, queue=100, wait=wait, costs=costs)
    for _ in range(4):
        offer(policy, 1, "k", 0.0, FAR)
    policy.release(0.0)
    for rows in more or (1,):
        offer(policy, rows, "k", 0.9, deadline)
    policy.finished(1.0)
    return policy


@pytest.mark.parametrize(
    ("wait", "deadline", "until"),
    [
        (inf, FAR, 1.1875),  # a quarter of what a batch saves, while no request comes
        (0.2, FAR, 1.05),
        (inf, 3.1, 1.1),  # twice the batch's time is left
    ],
)
def test_release__clients_were_just_answered__waits_no_longer_than_it_pays(
    wait: float, deadline: float, until: float
) -> None:
    policy = after_a_batch(wait, deadline=deadline)
    assert policy.next_event(1.0) == pytest.approx(until)
    assert policy.release(until - 0.01) == []
    assert policy.expire(until) == []
    assert numbers(policy.release(until)) == [4]


def test_release__deadline_while_clients_may_return__keeps_twice_the_batch_time() -> None:
    policy = after_a_batch(inf, deadline=1.55, costs={8: 0.25})
    assert policy.next_event(1.0) == pytest.approx(1.05)


def test_release__no_wait_allowed__starts_at_once() -> None:
    assert numbers(after_a_batch(0.0).release(1.0)) == [4]


def test_release__idle_server_whose_clients_may_return__runs_at_once() -> None:
    policy = batcher(rows=8, wait=inf, costs=FLAT)
    for _ in range(4):
        offer(policy, 1, "k", 0.0, FAR)
    policy.release(0.0)
    policy.finished(1.0)
    offer(policy, 1, "k", 1.1, FAR)
    assert numbers(policy.release(1.1)) == [4]


def test_expire__request_that_joins_a_waiting_one__expires_when_it_is_too_late_to_run() -> None:
    policy = after_a_batch(inf)
    assert policy.release(1.0) == []
    late = offer(policy, 1, "k", 1.0, 3.0)
    assert policy.expire(1.9) == []
    assert policy.expire(2.0) == [late]


def test_release__next_request_does_not_fit__does_not_wait_for_clients() -> None:
    policy = after_a_batch(inf, 6, 4, costs={8: 1.0})
    assert policy.next_event(1.0) == 1.0
    assert numbers(policy.release(1.0)) == [4]


def test_release__deadline_keeps_a_request_out__does_not_wait_for_clients() -> None:
    policy = batcher(rows=16, queue=100, wait=inf, costs={1: 1.0, 8: 1.0, 16: 20.0})
    for _ in range(4):
        offer(policy, 1, "k", 0.0, FAR)
    policy.release(0.0)
    offer(policy, 1, "k", 0.9, 10.0)
    offer(policy, 14, "k", 0.9, FAR)  # both together take longer than 9 s
    policy.finished(1.0)
    assert policy.next_event(1.0) == 1.0
    assert numbers(policy.release(1.0)) == [4]


def test_release__rows_that_cannot_be_joined__do_not_wait_for_clients() -> None:
    policy = batcher(rows=8, wait=inf, joinable=False, costs=FLAT)
    offer(policy, 4, "k", 0.0, FAR)
    policy.release(0.0)
    offer(policy, 1, "k", 0.9, FAR)
    policy.finished(1.0)
    assert policy.next_event(1.0) == 1.0
    assert numbers(policy.release(1.0)) == [1]


def test_release__request_that_waits_for_clients_is_cancelled__full_batch_starts_at_once() -> None:
    policy = batcher(rows=8, queue=100, wait=inf, costs={8: 1.0})
    for _ in range(4):
        offer(policy, 1, "k", 0.0, FAR)
    policy.release(0.0)
    waiting = offer(policy, 1, "k", 0.9, FAR)
    offer(policy, 8, "other", 0.9, FAR)
    policy.finished(1.0)
    assert policy.release(1.0) == []
    assert policy.cancel(waiting)
    assert policy.next_event(1.0) == 1.0
    assert numbers(policy.release(1.0)) == [5]


def test_release__larger_batch_saves_nothing__starts_at_once() -> None:
    policy = batcher(rows=4, wait=inf, costs=LINEAR)
    for moment in (0.0, 0.1, 0.2):
        offer(policy, 1, "k", moment, FAR)
        policy.release(0.0)
    policy.finished(1.0)
    assert numbers(policy.release(1.0)) == [1, 2]


def test_release__full_batch__does_not_linger() -> None:
    policy = batcher(rows=2, wait=0.5)
    offer(policy, 1, "k", 0.0, FAR)
    policy.release(0.0)
    offer(policy, 1, "k", 0.1, FAR)
    offer(policy, 1, "k", 0.1, FAR)
    policy.finished(0.1)
    assert numbers(policy.release(0.1)) == [1, 2]


def test_release__next_request_does_not_fit__a_later_small_one_fills_the_batch() -> None:
    policy = batcher(rows=4)
    for rows in (3, 2, 1):
        offer(policy, rows, "k", 0.0, FAR)
    assert numbers(policy.release(0.0)) == [0, 2]
    policy.finished(0.1)
    assert numbers(policy.release(0.1)) == [1]


def test_release__parts_of_a_large_request_wait__whole_requests_lead_every_second_batch() -> None:
    policy = batcher(rows=4, queue=100)
    for _ in range(3):
        offer(policy, 4, "k", 0.0, FAR, part=True)
    for _ in range(5):
        offer(policy, 1, "k", 0.0, FAR)
    batches = []
    for _ in range(5):
        batches.append(numbers(policy.release(0.0)))
        policy.finished(0.1)
    assert batches == [[0], [3, 4, 5, 6], [1], [7], [2]]


def test_release__request_above_the_batch_size__runs_alone() -> None:
    policy = batcher(rows=4)
    offer(policy, 6, "k", 0.0, FAR)
    offer(policy, 1, "k", 0.0, FAR)
    assert numbers(policy.release(0.0)) == [0]


def test_release__other_shapes_or_dependent_rows__are_not_joined() -> None:
    policy = batcher()
    for key in ("a", "b", "a"):
        offer(policy, 1, key, 0.0, FAR)
    assert numbers(policy.release(0.0)) == [0, 2]
    alone = batcher(joinable=False)
    offer(alone, 1, "k", 0.0, FAR)
    offer(alone, 1, "k", 0.0, FAR)
    assert numbers(alone.release(0.0)) == [0]


def test_offer__full_queue__rejects_with_a_retry_time() -> None:
    policy = batcher(rows=4, queue=8)
    offer(policy, 4, "k", 0.0, FAR)
    policy.release(0.0)
    policy.finished(2.0)
    offer(policy, 4, "k", 2.0, FAR)
    policy.release(2.0)
    offer(policy, 8, "k", 2.0, FAR)
    with pytest.raises(QueueFullError) as caught:
        offer(policy, 1, "k", 2.0, FAR)
    assert caught.value.retry_after == pytest.approx(6.0)  # one batch runs and two wait
    assert caught.value.code is ErrorCode.QUEUE_FULL


def test_offer__more_rows_than_the_queue__is_too_large() -> None:
    with pytest.raises(MlctlError, match="9 rows, the limit is 8") as caught:
        offer(batcher(queue=8), 9, "k", 0.0, FAR)
    assert caught.value.code is ErrorCode.PAYLOAD_TOO_LARGE


def test_check_room__large_request__may_fill_half_of_the_queue() -> None:
    policy = batcher(rows=64, queue=100)
    offer(policy, 1, "k", 0.0, FAR)
    policy.release(0.0)
    offer(policy, 10, "k", 0.0, FAR)
    policy.check_room(40, Priority.NORMAL, 0.0)
    with pytest.raises(QueueFullError, match="10 rows wait already, the limit is 50"):
        policy.check_room(41, Priority.NORMAL, 0.0)
    offer(policy, 50, "k", 0.0, FAR, part=True)
    policy.check_room(32, Priority.NORMAL, 0.0)
    with pytest.raises(QueueFullError):
        policy.check_room(33, Priority.NORMAL, 0.0)


def test_offer__parts_of_an_accepted_request__have_room() -> None:
    policy = batcher(rows=64, queue=100)
    policy.check_room(100, Priority.NORMAL, 0.0)
    for _ in range(2):
        offer(policy, 50, "k", 0.0, FAR, part=True)
    assert policy.waiting_rows == 100


@pytest.mark.parametrize(("rows", "accepted"), [(32, False), (33, True)])
def test_offer__predicted_wait_is_too_long__rejects_small_requests_only(
    rows: int, accepted: bool
) -> None:
    policy = busy(rows=64, queue=200, max_queue=0.5, costs=FLAT)
    ticket = Ticket(rows, "k", 0.0, FAR)
    if accepted:
        policy.offer(ticket)
    else:
        with pytest.raises(QueueFullError):
            policy.offer(ticket)
    assert policy.waiting_rows == (rows if accepted else 0)


def test_state__idle_then_busy_then_idle__is_shown() -> None:
    policy = batcher(rows=4)
    assert (policy.idle, policy.busy, policy.running_seconds(1.0)) == (True, False, 0.0)
    offer(policy, 4, "k", 1.0, FAR)
    assert (policy.idle, policy.busy, policy.full) == (False, False, True)
    policy.release(1.0)
    assert (policy.idle, policy.busy, policy.running_seconds(3.5)) == (False, True, 2.5)
    assert policy.running_rows == 4
    policy.finished(2.5)
    assert policy.idle


def test_expire__deadline_passes__returns_the_request_once() -> None:
    policy = batcher(rows=1)
    running = offer(policy, 1, "k", 0.0, 1.0)
    policy.release(0.0)
    waiting = offer(policy, 1, "k", 0.0, 2.0)
    assert policy.next_event(0.0) == 1.0
    assert policy.expire(0.9) == []
    assert policy.expire(1.0) == [running]
    assert policy.busy
    assert policy.expire(2.0) == [waiting]
    assert policy.waiting_rows == 0
    assert policy.expire(3.0) == []
    with pytest.raises(MlctlError) as caught:
        offer(policy, 1, "k", 3.0, 3.0)
    assert caught.value.code is ErrorCode.DEADLINE_EXCEEDED


def test_cancel__running_request__is_not_reported_at_its_deadline() -> None:
    policy = batcher()
    left = offer(policy, 1, "k", 0.0, 1.0)
    policy.release(0.0)
    assert policy.open_tickets() == [left]
    assert not policy.cancel(left)
    assert policy.open_tickets() == []
    assert policy.expire(1.0) == []


def test_next_event__running_request_without_deadline__is_none() -> None:
    policy = batcher()
    offer(policy, 1, "k", 0.0, inf)
    policy.release(0.0)
    assert policy.next_event(0.0) is None


def test_cancel__waiting_request__is_not_run() -> None:
    policy = batcher()
    left = offer(policy, 2, "k", 0.0, FAR)
    offer(policy, 1, "k", 0.0, FAR)
    assert policy.cancel(left)
    assert numbers(policy.release(0.0)) == [1]
    assert not policy.cancel(left)


def test_release__thousands_of_requests__frees_their_tickets() -> None:
    policy = batcher()
    for turn in range(2000):
        offer(policy, 1, "k", float(turn), turn + 1e6)
        policy.release(float(turn))
        policy.finished(0.001)
    assert sum(type(each) is Ticket for each in gc.get_objects()) < 600
    assert policy.next_event(2000.0) is None


def test_offer__predicted_wait_above_the_limit__rejects() -> None:
    policy = busy(max_queue=1.5, costs=FLAT, queue=100)
    offer(policy, 4, "k", 0.0, FAR)  # waits for 1 s
    with pytest.raises(QueueFullError, match="about 2 s") as caught:
        offer(policy, 1, "k", 0.0, FAR)  # a full batch is ahead
    assert caught.value.retry_after == pytest.approx(2.0)
    offer(policy, 1, "k", 0.6, FAR)  # by now it is but 1.4 s


def test_offer__deadline_cannot_be_met__rejects() -> None:
    policy = busy(costs=FLAT, queue=100)
    offer(policy, 4, "k", 0.0, FAR)
    with pytest.raises(QueueFullError):
        offer(policy, 1, "k", 0.5, 2.9)
    offer(policy, 1, "k", 0.5, 3.0)


def test_offer__full_batch_waits_for_its_start__counts_in_the_predicted_wait() -> None:
    policy = batcher(queue=100, max_queue=0.5, costs=FLAT)
    offer(policy, 4, "k", 0.0, FAR)
    with pytest.raises(QueueFullError, match="about 1 s"):
        offer(policy, 1, "k", 0.0, FAR)


def test_expire__deadline_can_no_longer_be_met__returns_early() -> None:
    policy = busy(costs=FLAT)
    late = offer(policy, 1, "k", 0.0, 2.5)
    assert policy.next_event(0.0) == pytest.approx(1.5)
    assert policy.expire(1.4) == []
    assert policy.expire(1.6) == [late]  # the first batch takes longer than it should
    policy.finished(1.7)
    assert policy.release(1.7) == []


def test_release__idle_server_with_a_late_estimate__runs() -> None:
    policy = batcher(costs=FLAT)
    offer(policy, 1, "k", 0.0, 0.5)
    assert policy.expire(0.1) == []
    assert numbers(policy.release(0.1)) == [0]
    assert [ticket.number for ticket in policy.expire(0.5)] == [0]


@pytest.mark.parametrize(("deadline", "batch"), [(4.5, [1, 2]), (5.0, [1, 2, 3])])
def test_release__deadline_in_the_batch__limits_its_size(deadline: float, batch: list[int]) -> None:
    policy = busy(costs=LINEAR)
    offer(policy, 1, "k", 0.0, deadline)
    for _ in range(2):
        offer(policy, 1, "k", 0.0, FAR)
    policy.finished(1.0)
    assert numbers(policy.release(2.0)) == batch  # three rows end at 5.0


def test_release__both_priorities__high_first_without_starvation() -> None:
    policy = busy(rows=1, queue=100)
    for _ in range(12):
        offer(policy, 1, "k", 0.0, FAR)
    for _ in range(12):
        offer(policy, 1, "k", 0.0, FAR, Priority.HIGH)
    led = []
    for _ in range(24):
        policy.finished(0.0)
        led.append(policy.release(0.0)[0].priority is Priority.HIGH)
    assert led[:15] == ([True] * 4 + [False]) * 3
    assert led[15:] == [False] * 9


def test_release__first_batches__up_to_four_are_led_by_high_priority() -> None:
    policy = batcher(rows=1, queue=100)
    for priority in [Priority.NORMAL, *[Priority.HIGH] * 5]:
        offer(policy, 1, "k", 0.0, FAR, priority)
    led = []
    for _ in range(6):
        led += numbers(policy.release(0.0))
        policy.finished(0.0)
    assert led == [1, 2, 3, 4, 0, 5]


def test_offer__high_priority__waits_for_high_requests_only() -> None:
    policy = busy(costs=FLAT, queue=100, max_queue=1.0)
    offer(policy, 3, "k", 0.0, FAR)
    offer(policy, 1, "k", 0.0, FAR, Priority.HIGH)
    with pytest.raises(QueueFullError):
        offer(policy, 1, "k", 0.0, FAR)
    offer(policy, 1, "k", 0.0, FAR, Priority.HIGH)
    policy.finished(1.0)
    assert numbers(policy.release(1.0)) == [2, 3]
    policy.finished(1.0)
    assert numbers(policy.release(2.0)) == [1]


def test_finished__failed_batch__keeps_the_cost() -> None:
    policy = busy(costs={1: 1.0})
    policy.finished(50.0, clean=False)
    assert policy.costs.seconds(1) == 1.0


def test_offer__requests_that_cannot_be_joined__wait_for_each_other() -> None:
    policy = busy(joinable=False, max_queue=2.5, costs={1: 1.0})
    offer(policy, 1, "k", 0.0, FAR)
    offer(policy, 1, "k", 0.0, FAR)
    with pytest.raises(QueueFullError, match="about 3 s"):
        offer(policy, 1, "k", 0.0, FAR)


def test_quick_reject__same_rows_and_priority__until_room_is_possible() -> None:
    policy = busy(costs=FLAT, max_queue=0.1)  # what runs takes 1 s
    assert policy.quick_reject(1, Priority.NORMAL, 0.0) is None
    with pytest.raises(QueueFullError) as refused:
        offer(policy, 1, "k", 0.25, FAR)
    assert policy.running_seconds(0.25) == 0.25
    assert policy.quick_reject(1, Priority.NORMAL, 0.875) is refused.value
    assert policy.quick_reject(2, Priority.NORMAL, 0.875) is None
    assert policy.quick_reject(1, Priority.HIGH, 0.875) is None
    assert policy.quick_reject(1, Priority.NORMAL, 0.91) is None
    offer(policy, 1, "k", 0.91, FAR)


def test_quick_reject__predicted_wait__is_valid_until_it_is_short_enough() -> None:
    policy = busy(costs=FLAT, max_queue=0.25)  # what runs ends at 1.0
    with pytest.raises(QueueFullError):
        offer(policy, 1, "k", 0.25, FAR)
    assert policy.quick_reject(1, Priority.NORMAL, 0.7499) is not None
    assert policy.quick_reject(1, Priority.NORMAL, 0.75) is None


@pytest.mark.parametrize(("rows", "requests"), [(2, 3), (None, 6)])
def test_quick_reject__many_requests__count_as_offered_load(
    rows: int | None, requests: int
) -> None:
    loads = []
    for quick in (True, False):
        policy = busy(costs=FLAT, max_queue=0.1)
        with pytest.raises(QueueFullError):
            offer(policy, 2, "k", 0.25, FAR)
        for _ in range(requests):
            if quick:
                assert policy.quick_reject(rows, Priority.NORMAL, 0.25) is not None
            else:
                with pytest.raises(QueueFullError):
                    offer(policy, rows or 1, "k", 0.25, FAR)
        policy.finished(1.0)
        loads.append(policy._forecast._load.utilization)
    assert loads[0] == loads[1] > 0.0


def utilization_after(policy: BatchScheduler[Ticket]) -> float:
    """Return the measured load, after eight requests for each that was possible."""
    offer(policy, 1, "k", 0.0, FAR)
    policy.release(0.0)
    for _ in range(8):
        offer(policy, 1, "k", 0.5, FAR)
    policy.finished(1.0)
    return policy._forecast._load.utilization


def test_offer__idle_time__lowers_the_offered_load() -> None:
    policy = batcher(rows=8, queue=100, costs=FLAT)
    busy_load = utilization_after(policy)
    policy.release(1.0)
    policy.finished(1.0)
    before = policy._forecast._load.utilization
    assert 0.0 < before < busy_load
    offer(policy, 1, "k", 12.0, FAR)
    assert policy._forecast._load.utilization < before / 2


def test_offer__time_in_which_a_request_waits__is_not_idle() -> None:
    policy = batcher(rows=16, queue=100, costs=FLAT)
    load = utilization_after(policy)
    offer(policy, 1, "k", 12.0, FAR)
    assert policy._forecast._load.utilization == load


def test_quick_reject__queue_is_full_before_its_batch_starts__is_not_idle_time() -> None:
    policy = batcher(rows=8, queue=8, costs=FLAT)
    offer(policy, 1, "k", 0.0, FAR)
    policy.release(0.0)
    offer(policy, 1, "k", 0.5, FAR)
    policy.finished(1.0)
    load = policy._forecast._load.utilization
    offer(policy, 7, "k", 9.0, FAR)
    with pytest.raises(QueueFullError):
        offer(policy, 1, "k", 10.0, FAR)
    assert policy.quick_reject(1, Priority.NORMAL, 11.0) is not None
    assert policy._forecast._load.utilization == load > 0.0


def test_quick_reject__rows_unknown__only_where_any_number_would_be_rejected() -> None:
    policy = busy(costs=FLAT, max_queue=0.1)  # one second is too long for any rows
    with pytest.raises(QueueFullError):
        offer(policy, 2, "k", 0.25, FAR)
    assert policy.quick_reject(None, Priority.NORMAL, 0.875) is not None
    full = busy(costs=FLAT, queue=4)
    offer(full, 3, "k", 0.0, FAR)
    with pytest.raises(QueueFullError):
        offer(full, 2, "k", 0.0, FAR)
    assert full.quick_reject(None, Priority.NORMAL, 0.0) is None  # one row has room
    offer(full, 1, "k", 0.0, FAR)
    with pytest.raises(QueueFullError):
        offer(full, 1, "k", 0.0, FAR)
    assert full.quick_reject(None, Priority.NORMAL, 0.0) is not None


def test_quick_reject__rejected_for_its_deadline__is_not_cached() -> None:
    policy = busy(costs=FLAT)
    with pytest.raises(QueueFullError):
        offer(policy, 1, "k", 0.0, 1.5)
    assert policy.quick_reject(1, Priority.NORMAL, 0.0) is None
    offer(policy, 1, "k", 0.0, FAR)


@pytest.mark.parametrize("how", ["leave", "expire", "finish"])
def test_quick_reject__queue_is_shorter__is_dropped(how: str) -> None:
    policy = busy(costs=LINEAR, max_queue=1.5)
    offer(policy, 1, "k", 0.0, FAR)
    waiting = [offer(policy, 1, "k", 0.0, 5.5) for _ in range(3)]
    with pytest.raises(QueueFullError):
        offer(policy, 1, "k", 0.0, FAR)
    assert policy.quick_reject(1, Priority.NORMAL, 0.125) is not None
    if how == "leave":
        policy.cancel(waiting[0])
    elif how == "expire":
        assert len(policy.expire(4.6)) == 3
    else:
        policy.finished(0.125)
    assert policy.quick_reject(1, Priority.NORMAL, 0.125) is None


def test_offer__arrived_before_the_end_of_the_last_batch__is_accepted() -> None:
    costs = BatchCosts({1: 1e-6, 4: 2e-6})
    policy: BatchScheduler[Ticket] = BatchScheduler(Limits(4, 100), costs)
    first = offer(policy, 1, "k", 0.0, 100.0)
    assert policy.release(0.0) == [first]
    policy.finished(1.0)
    second = offer(policy, 1, "k", 0.5, 100.0)
    assert policy.release(1.0) == [second]
