from __future__ import annotations

import os
from pathlib import Path

import pytest

from bundle.errors import ErrorCode, MlctlError
from services.batch.locks import lock_job


def test_a_place_has_one_job_until_it_is_closed(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    held = lock_job(lock, "scores")
    with pytest.raises(MlctlError, match="writes to scores") as refused:
        lock_job(lock, "scores")
    assert refused.value.code is ErrorCode.JOB_RUNNING
    os.close(held)
    os.close(lock_job(lock, "scores"))
