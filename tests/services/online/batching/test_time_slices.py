from services.online.batching.priority_queue import MAX_CONSECUTIVE_HIGH, Ticket
from services.online.batching.time_slices import TimeSlicedQueue
from services.protocol.priority import Priority


def ticket(number: int, rows: int = 2, priority: Priority = Priority.NORMAL) -> Ticket:
    return Ticket(number, rows, None, 0.0, 10.0, prompt=False, priority=priority, long=True)


def test_what_waits_has_its_turn_in_order() -> None:
    shifts = TimeSlicedQueue()
    for number in range(3):
        shifts.add(ticket(number))
    assert shifts.pop() == ticket(0)
    shifts.add(ticket(0))
    assert [shifts.pop().number for _ in range(3)] == [1, 2, 0]
    assert (len(shifts), shifts.rows) == (0, 0)


def test_what_is_parked_is_here_but_has_no_turn() -> None:
    shifts = TimeSlicedQueue()
    shifts.add(ticket(1), parked=True)
    shifts.add(ticket(2))
    assert (len(shifts), shifts.waiting, shifts.rows) == (2, 1, 4)
    assert 1 in shifts
    assert shifts.resume(1, 20.0)
    assert not shifts.resume(2, 20.0)
    assert [shifts.pop().number for _ in range(2)] == [2, 1]


def test_what_left_is_not_here() -> None:
    shifts = TimeSlicedQueue()
    shifts.add(ticket(1), parked=True)
    assert shifts.get(1) == ticket(1)
    assert shifts.remove(1) == ticket(1)
    assert shifts.remove(1) is None
    assert shifts.get(1) is None
    assert shifts.rows == 0


def test_the_high_lane_has_most_turns_and_the_other_one_some() -> None:
    shifts = TimeSlicedQueue()
    high = ticket(1, priority=Priority.HIGH)
    shifts.add(ticket(0))
    shifts.add(high)
    turns = []
    for _ in range(2 * (MAX_CONSECUTIVE_HIGH + 1)):
        turns.append(shifts.pop())
        shifts.add(turns[-1])
    assert [each.number for each in turns] == ([1] * MAX_CONSECUTIVE_HIGH + [0]) * 2
    assert shifts.get(1) == high
