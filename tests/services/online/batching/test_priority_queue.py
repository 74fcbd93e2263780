from mlctl.services.online.batching.scheduler import PriorityQueue, Ticket
from mlctl.services.protocol.priority import Priority


def ticket(number: int, priority: Priority, rows: int = 1) -> Ticket:
    made = Ticket(rows, "k", float(number), 100.0, priority)
    made.number = number
    return made


def test_priority_queue__each_priority__keeps_its_order_and_rows() -> None:
    lanes = PriorityQueue[Ticket]()
    priorities = [Priority.NORMAL, Priority.HIGH, Priority.NORMAL, Priority.HIGH]
    tickets = [ticket(number, each, rows=number + 1) for number, each in enumerate(priorities)]
    for each in tickets:
        lanes.add(each)
    assert [waiting.number for waiting in lanes.in_turn()] == [1, 3, 0, 2]
    assert lanes.oldest().number == 0
    assert lanes.ahead_of(Priority.HIGH) == (6, 2)
    assert lanes.ahead_of(Priority.NORMAL) == (10, 4)
    assert lanes.remove(tickets[1])
    assert not lanes.remove(tickets[1])
    assert lanes.ahead_of(Priority.HIGH) == (4, 1)
    assert (lanes.count, lanes.rows) == (3, 8)
