import pytest

from bento.clients.runtime.calls import Call, Retry
from bento.clients.runtime.errors import (
    DeadlineError,
    InvalidInputError,
    ModelError,
    OverloadedError,
    UnavailableError,
    error_of,
)

DOWN = UnavailableError("down")


class Hand:
    """A clock that is turned by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("asked", "failures", "luck", "seconds"),
    [
        (None, 1, 0.0, 0.1),
        (None, 2, 0.0, 0.2),
        (None, 3, 1.0, 0.6),
        (2.0, 1, 0.0, 2.0),
        (2.0, 1, 0.5, 2.5),
        (6.0, 1, 0.0, None),
        (None, 4, 0.0, None),
    ],
)
def test_waits_double_and_the_server_has_its_say(
    asked: float | None, failures: int, luck: float, seconds: float | None
) -> None:
    error = OverloadedError("full", retry_after=asked)
    assert Retry().wait(error, failures, luck) == (
        None if seconds is None else pytest.approx(seconds)
    )


@pytest.mark.parametrize("error", [InvalidInputError("x"), DeadlineError("x"), ModelError("x")])
def test_what_would_fail_again_is_not_repeated(error: ModelError) -> None:
    assert Retry().wait(error, 1, 0.0) is None


def test_a_call_has_one_deadline_for_all_attempts() -> None:
    clock = Hand()
    call = Call(2.0, Retry(first_seconds=0.5), clock)
    assert call.timeout == 2_000_000
    clock.now += 0.25
    assert call.timeout == 2_000_000  # the first attempt's bytes are always the same
    assert 0.5 <= call.pause(DOWN) <= 0.75
    assert call.timeout == 1_750_000
    clock.now += 1.25
    with pytest.raises(UnavailableError):
        call.pause(DOWN)  # the wait would end after the deadline
    clock.now += 1
    with pytest.raises(DeadlineError):
        _ = call.left


def test_a_call_needs_time() -> None:
    with pytest.raises(ValueError, match="more than 0"):
        Call(0, Retry(), Hand())


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("queue_full", 503, OverloadedError),
        ("unavailable", 503, UnavailableError),
        ("", 503, UnavailableError),
        ("", 429, OverloadedError),
        ("invalid_input", 400, InvalidInputError),
        ("deadline_exceeded", 504, DeadlineError),
    ],
)
def test_errors_are_named_by_code_or_else_by_status(
    code: str, status: int, kind: type[ModelError]
) -> None:
    error = error_of("text", code, "do this", status, 3.0)
    assert type(error) is kind
    assert (error.code, error.hint, error.status, error.retry_after) == (
        code, "do this", status, 3.0,
    )  # fmt: skip
    assert "do this" in str(error)
