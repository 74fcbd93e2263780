from __future__ import annotations

import pytest

from mlctl.core.backoff import pause_after


@pytest.mark.parametrize(
    ("failures", "pause"), [(1, 0.5), (2, 1.0), (3, 2.0), (6, 16.0), (7, 30.0), (10**6, 30.0)]
)
def test_pause__failures_in_a_row__doubles_up_to_the_longest(failures: int, pause: float) -> None:
    assert pause_after(failures, 0.5, 30.0) == pause
