from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet

from mlctl.bundle.sampling import Sampling, is_sampled, write_sampling
from mlctl.bundle.tensors import DYNAMIC, Datatype, Signature, TensorSpec
from mlctl.services.online.observability import sampling as module
from mlctl.services.online.observability.sampling import Recorder, SamplingControl
from mlctl.services.online.observability.segments import SegmentWriter
from tests.services.online.observability.calls import seen
from tests.support.clock import ManualClock

SIGNATURE = Signature(
    inputs=(TensorSpec(name="x", dtype=Datatype.FP32, shape=(DYNAMIC, 2)),),
    outputs=(TensorSpec(name="y", dtype=Datatype.FP32, shape=(DYNAMIC,)),),
)
X = np.ones((2, 2), np.float32)
BATCH = np.arange(100, dtype=np.float32)


def recorder(
    folder: Path, settings: Sampling, clock: ManualClock, control: Path | None = None
) -> Recorder:
    writer = SegmentWriter(folder / "samples", SIGNATURE, "d")
    return Recorder(writer, SamplingControl(settings, control), clock)


def ask(to: Recorder, request_id: bytes, at: float = 0.0) -> bool:
    """Whether a request with this id was taken; its answer is a part of a batch's."""
    sampling = to.choose(request_id)
    if sampling is not None:
        to.put(seen(request_id), sampling, at, 2, {"x": X}, {"y": BATCH[3:5]})
    return sampling is not None


def recorded(folder: Path) -> list[dict[str, Any]]:
    paths = sorted((folder / "samples").glob("*.parquet"))
    return [row for path in paths for row in parquet.read_table(path).to_pylist()]


def test_choose__share_of_requests__depends_on_the_request_id_only(tmp_path: Path) -> None:
    ours = recorder(tmp_path, Sampling(share=0.3), ManualClock())
    ids = [b"id-%d" % number for number in range(2000)]
    taken = [request_id for request_id in ids if ours.choose(request_id) is not None]
    assert taken == [request_id for request_id in ids if is_sampled(request_id, 0.3)]
    assert 500 < len(taken) < 700


def test_recorder__flush_time_has_passed__rows_are_on_disk(tmp_path: Path) -> None:
    clock = ManualClock()
    ours = recorder(tmp_path, Sampling(share=1, flush_seconds=10), clock)
    ask(ours, b"a")
    clock.advance(9.9)
    ask(ours, b"b", at=9.9)
    ours.flush()
    assert recorded(tmp_path) == []
    clock.advance(0.1)
    ours.flush()
    assert [row["request_id"] for row in recorded(tmp_path)] == ["a", "a", "b", "b"]
    assert [row["out.y"] for row in recorded(tmp_path)] == [3, 4, 3, 4]
    assert ours.rows == 4
    ask(ours, b"c", at=10)
    ours.close()
    assert recorded(tmp_path)[-1]["request_id"] == "c"
    assert ours.choose(b"d") is None


def test_control_file__valid_until_its_time__overrides_the_settings(tmp_path: Path) -> None:
    clock, control = ManualClock(100), tmp_path / "control.json"
    ours = recorder(tmp_path, Sampling(), clock, control)
    assert not ask(ours, b"a")
    write_sampling(control, Sampling(share=1, until=200, redact=("x",)))
    ours.flush()
    assert ask(ours, b"b", at=100)
    write_sampling(control, Sampling(share=1, until=200))
    assert ask(ours, b"c", at=100)  # not polled yet: still under the older word
    ours.flush()  # what was taken before is written as it was asked for then
    assert ask(ours, b"d", at=100)
    clock.advance(100)
    ours.flush()
    assert not ask(ours, b"e")
    found = {row["request_id"]: set(row) & {"in.x", "out.y"} for row in recorded(tmp_path)}
    assert found == {"b": {"out.y"}, "c": {"out.y"}, "d": {"in.x", "out.y"}}
    control.unlink()
    ours.flush()
    assert not ask(ours, b"f")


def test_control_file__other_redaction__adds_to_the_servers(tmp_path: Path) -> None:
    control = tmp_path / "control.json"
    write_sampling(control, Sampling(share=1, redact=("y",)))
    current = SamplingControl(Sampling(redact=("x",)), control).poll(0)
    assert (current.share, current.redact) == (1, ("x", "y"))


def test_control_file__invalid__records_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    control = tmp_path / "control.json"
    ours = recorder(tmp_path, Sampling(share=1), ManualClock(), control)
    assert ask(ours, b"a")
    for content in ('{"share": 1, "more": 2}', "\xff", '{"share": 7}', "[]", "", "[" * 100_000):
        control.write_bytes(content.encode("latin-1"))
        ours.flush()
        assert not ask(ours, b"b")
    assert "MLCTL_SAMPLE_CONTROL" in caplog.text
    assert len(recorded(tmp_path)) == 2


def test_recorder__above_its_memory__drops_and_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = X.nbytes + BATCH[3:5].nbytes
    monkeypatch.setattr(module, "MAX_BYTES", 3 * one)
    monkeypatch.setattr(module, "SEGMENT_BYTES", 2 * one)
    ours = recorder(tmp_path, Sampling(share=1), ManualClock())
    for number in range(5):
        ask(ours, b"%d" % number)
    assert ours.dropped == 2
    ours.flush()
    assert len(recorded(tmp_path)) == 6
    ask(ours, b"again")  # what is on disk is held no more
    assert ours.dropped == 2


def test_recorder__disk_write_fails__loses_only_these_rows(tmp_path: Path) -> None:
    ours = recorder(tmp_path, Sampling(share=1, flush_seconds=0.1), ManualClock(50))
    folder = tmp_path / "samples"
    folder.rmdir()
    ask(ours, b"a")
    with pytest.raises(OSError, match="samples"):
        ours.flush()
    assert (ours.dropped, ours.rows) == (1, 0)
    folder.mkdir()
    ask(ours, b"b")
    ours.flush()
    assert [row["request_id"] for row in recorded(tmp_path)] == ["b", "b"]
