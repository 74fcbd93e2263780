"""The lock of an output."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bundle.errors import ErrorCode, MlctlError
from services.batch.storage import lock_job


def test_lock_job__second_job__is_rejected_until_the_first_ends(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    held = lock_job(lock, "scores")
    with pytest.raises(MlctlError, match="writes to scores") as caught:
        lock_job(lock, "scores")
    assert caught.value.code is ErrorCode.JOB_RUNNING
    os.close(held)
    os.close(lock_job(lock, "scores"))
