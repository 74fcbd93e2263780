"""What a server recorded, as rows to calibrate and judge with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from mlctl.bundle.sampling import Sampling as Recorded
from mlctl.bundle.tensors import Signature
from mlctl.core.errors import MlctlError
from mlctl.optimize.data import RowLimits, load_data, read_rows
from mlctl.services.online.observability.calls import RecordedPayload
from mlctl.services.online.observability.segments import SegmentWriter
from tests.support.eval_rows import Batches, save_parquet, signature

SIGNATURE = signature(2, 3)
ALL = Recorded(share=1)
X = np.arange(240, dtype=np.float32).reshape(40, 2, 3)


def record(folder: Path, of: Signature = SIGNATURE, sampling: Recorded = ALL) -> None:
    """Requests of one to four rows, in segments of four requests."""
    writer = SegmentWriter(folder, of, "d")
    payloads, start, number = [], 0, 0
    while start < len(X):
        rows = X[start : start + 1 + number % 4]
        scores = {"scores": np.zeros((len(rows), 3), np.float32)}
        request_id = f"r{number}"
        payloads.append(
            RecordedPayload(request_id, 1, sampling, len(rows), 0, {"image": rows}, scores)
        )
        start, number = start + len(rows), number + 1
    for first in range(0, len(payloads), 4):
        writer.write(payloads[first : first + 4], sampling, now=first)


def test_samples__a_folder_of_segments__has_the_rows_in_order(tmp_path: Path) -> None:
    record(tmp_path)
    (tmp_path / ".half.parquet").write_bytes(b"not written yet")
    found = load_data(tmp_path, SIGNATURE)
    want = read_rows(Batches({"image": X}, 40), SIGNATURE, RowLimits())
    assert found.sha256 == want.sha256
    np.testing.assert_array_equal(
        found.calibration.inputs["image"], want.calibration.inputs["image"]
    )
    one = next(tmp_path.glob("[0-9]*.parquet"))
    assert load_data(one, SIGNATURE).rows < 40


def test_samples__added_labels__are_read_and_other_columns_ignored(tmp_path: Path) -> None:
    columns = {
        "request_id": ["r"] * 40,
        "in.image": pa.array(X.tolist(), pa.list_(pa.list_(pa.float32(), 3), 2)),
        "out.scores": X[:, 0].tolist(),
        "reviewer": ["me"] * 40,
        "labels": np.arange(40) % 3,
    }
    save_parquet(tmp_path / "reviewed.parquet", columns)
    data = load_data(tmp_path, SIGNATURE)
    assert data.held_out.labels is not None
    assert set(data.held_out.labels.tolist()) == {0, 1, 2}


def test_samples__redacted_or_empty__is_named(tmp_path: Path) -> None:
    with pytest.raises(MlctlError, match="without Parquet files"):
        load_data(tmp_path, SIGNATURE)
    record(tmp_path, sampling=Recorded(share=1, redact=("image",)))
    with pytest.raises(MlctlError, match="no column feeds input 'image'"):
        load_data(tmp_path, SIGNATURE)
