from __future__ import annotations

from mlctl.services.online.grpc.http2.connection import CAPACITY, PER_ANSWER, PER_SECOND, Bucket


def test_bucket__above_capacity__overflows_and_drains() -> None:
    bucket = Bucket(0.0)
    assert all(bucket.add(0.0) for _ in range(int(CAPACITY)))
    assert not bucket.add(0.0)
    assert bucket.add(1.0, PER_SECOND - 1)
    assert not bucket.add(1.0, 2.0)


def test_bucket__answered_calls__make_room() -> None:
    bucket = Bucket(0.0)
    for _ in range(int(CAPACITY) * 3):
        bucket.answered()
        assert bucket.add(0.0, PER_ANSWER)
