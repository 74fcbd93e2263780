import pytest

from bundle.errors import ErrorCode, MlctlError
from services.protocol.priority import Lanes, Priority, Ticket, named_lane, parse_priority


def ticket(number: int, priority: Priority, rows: int = 1) -> Ticket:
    return Ticket(number, rows, "k", float(number), 100.0, False, priority)


def test_high_and_normal_may_be_written_as_tritons_clients_do() -> None:
    assert [parse_priority(value) for value in ("high", "HIGH", 1, "1")] == [Priority.HIGH] * 4
    assert [parse_priority(value) for value in ("normal", 0, 2)] == [Priority.NORMAL] * 3


@pytest.mark.parametrize("value", ["urgent", "", 3, -1, True, None, [1]])
def test_other_priorities_are_refused(value: object) -> None:
    with pytest.raises(MlctlError, match="high or normal") as caught:
        parse_priority(value)
    assert caught.value.code is ErrorCode.INVALID_INPUT


def test_several_headers_name_a_lane_if_they_agree() -> None:
    assert named_lane([]) is None
    assert named_lane(["1"]) is named_lane(["high", "high"]) is Priority.HIGH
    for values in (["high", "normal"], ["high", "1"], ["", "high"], [""]):
        with pytest.raises(MlctlError, match="high or normal"):
            named_lane(values)


def test_each_lane_keeps_its_order_and_counts_its_rows() -> None:
    lanes = Lanes()
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
