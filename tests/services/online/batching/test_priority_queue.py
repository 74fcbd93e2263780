from services.online.batching.priority_queue import PriorityQueue, Ticket
from services.protocol.priority import Priority


def ticket(number: int, priority: Priority, rows: int = 1) -> Ticket:
    return Ticket(number, rows, "k", float(number), 100.0, False, priority)


def test_each_lane_keeps_its_order_and_counts_its_rows() -> None:
    lanes = PriorityQueue()
    for number, priority in enumerate([Priority.NORMAL, Priority.HIGH, Priority.NORMAL]):
        lanes.add(ticket(number, priority, rows=number + 1))
    assert [waiting.number for waiting in lanes.in_turn()] == [1, 0, 2]
    assert lanes.oldest().number == 0
    assert lanes.ahead_of(Priority.HIGH) == (2, 1)
    assert lanes.ahead_of(Priority.NORMAL) == (6, 3)
    assert lanes.remove(1) is not None
    assert lanes.remove(1) is None
    assert lanes.ahead_of(Priority.HIGH) == (0, 0)
    assert (lanes.count, lanes.rows, 0 in lanes, 1 in lanes) == (2, 4, True, False)
