import pytest

from bundle.errors import ErrorCode, MlctlError
from services.protocol.priority import Priority, parse_priority, priority_of_headers


def test_high_and_normal_may_be_written_as_tritons_clients_do() -> None:
    assert [parse_priority(value) for value in ("high", "HIGH", 1, "1")] == [Priority.HIGH] * 4
    assert [parse_priority(value) for value in ("normal", 0, 2)] == [Priority.NORMAL] * 3


@pytest.mark.parametrize("value", ["urgent", "", 3, -1, True, None, [1]])
def test_other_priorities_are_refused(value: object) -> None:
    with pytest.raises(MlctlError, match="high or normal") as caught:
        parse_priority(value)
    assert caught.value.code is ErrorCode.INVALID_INPUT


def test_several_headers_name_a_lane_if_they_agree() -> None:
    assert priority_of_headers([]) is None
    assert priority_of_headers(["1"]) is priority_of_headers(["high", "high"]) is Priority.HIGH
    for values in (["high", "normal"], ["high", "1"], ["", "high"], [""]):
        with pytest.raises(MlctlError, match="high or normal"):
            priority_of_headers(values)
