from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlctl.bundle.sampling import Sampling, is_sampled, write_sampling
from mlctl.core.errors import MlctlError

SAMPLINGS = st.builds(
    Sampling,
    share=st.floats(0, 1),
    until=st.none() | st.floats(0, 1e12),
    flush_seconds=st.floats(0.001, 1e6),
    max_bytes=st.integers(1, 1 << 50),
    redact=st.lists(st.text(max_size=9), max_size=3).map(tuple),
    inputs=st.booleans(),
)


@given(SAMPLINGS)
def test_sampling__written__reads_back_equal(sampling: Sampling) -> None:
    assert Sampling.from_json(sampling.to_json()) == sampling


def test_sampling__written__replaces_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "control.json"
    write_sampling(path, Sampling(share=0.5, redact=("a", "b")))
    assert Sampling.from_json(path.read_text()).redact == ("a", "b")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not JSON"), ("[]", "unknown"), ('{"more": 1}', "unknown"), ('{"share": 2}', "share"),
        ('{"share": NaN}', "share"), ('{"share": "0.5"}', "share"),
        ('{"redact": "name"}', "redact"), ('{"redact": [1]}', "redact"),
        ('{"until": NaN}', "until"), ('{"inputs": "no"}', "inputs"),
        ('{"flush_seconds": 0}', "flush_seconds"), ('{"flush_seconds": NaN}', "flush_seconds"),
        ('{"max_bytes": 0}', "max_bytes"),
    ],
)  # fmt: skip
def test_sampling__invalid_value__is_named(text: str, reason: str) -> None:
    with pytest.raises(MlctlError, match=reason):
        Sampling.from_json(text)


@given(st.lists(st.binary(min_size=1, max_size=20)), st.floats(0, 1), st.floats(0, 1))
def test_sampling__larger_share__includes_the_smaller_one(
    ids: list[bytes], one: float, two: float
) -> None:
    small, large = sorted((one, two))
    for request_id in ids:
        assert is_sampled(request_id, 1)
        assert not is_sampled(request_id, 0)
        assert is_sampled(request_id, large) or not is_sampled(request_id, small)


def test_sampling__many_requests__are_close_to_the_share() -> None:
    options: dict[str, Any] = {"share": 0.25}
    taken = sum(is_sampled(b"request-%d" % number, **options) for number in range(20_000))
    assert 4800 < taken < 5200
