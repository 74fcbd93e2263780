"""How many bad rows are too many."""

from __future__ import annotations

import pytest

from bundle.errors import ErrorCode, MlctlError
from services.batch.limits import ErrorLimit


@pytest.mark.parametrize(
    ("text", "total", "seen", "most"),
    [
        ("0", 100, 100, 0),
        ("25", None, 10, 25),
        ("1%", 10_000, 10, 100),
        ("0.5%", 1000, 0, 5),
        ("1%", None, 10, 10),
        ("1%", None, 50_000, 500),
        ("100%", 7, 7, 7),
    ],
)
def test_how_many_may_be_bad(text: str, total: int | None, seen: int, most: int) -> None:
    limit = ErrorLimit.parse(text)
    assert limit.max_bad(total, seen) == most
    limit.check(most, total, seen)
    with pytest.raises(MlctlError, match=f"more than --max-errors {text}") as caught:
        limit.check(most + 1, total, seen)
    assert caught.value.code is ErrorCode.TOO_MANY_BAD_ROWS


@pytest.mark.parametrize("text", ["", "-1", "1.5", "101%", "many", "1 %"])
def test_other_forms_are_refused(text: str) -> None:
    with pytest.raises(MlctlError, match="--max-errors"):
        ErrorLimit.parse(text)
