import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.protocol.priority import Priority, parse_priority, priority_of_headers


def test_parse_priority__names_or_numbers__are_read() -> None:
    assert [parse_priority(value) for value in ("high", "HIGH", 1, "1")] == [Priority.HIGH] * 4
    assert [parse_priority(value) for value in ("normal", 0, 2)] == [Priority.NORMAL] * 3


@pytest.mark.parametrize("value", ["urgent", "", 3, -1, True, None, [1]])
def test_parse_priority__unknown_value__is_rejected(value: object) -> None:
    with pytest.raises(MlctlError, match="high or normal") as caught:
        parse_priority(value)
    assert caught.value.code is ErrorCode.INVALID_INPUT


def test_priority_of_headers__several__must_agree() -> None:
    assert priority_of_headers([]) is None
    assert priority_of_headers(["1"]) is priority_of_headers(["high", "high"]) is Priority.HIGH
    for values in (["high", "normal"], ["high", "1"], ["", "high"], [""]):
        with pytest.raises(MlctlError, match="high or normal"):
            priority_of_headers(values)
