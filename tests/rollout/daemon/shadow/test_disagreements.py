from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from mlctl.rollout.daemon.segments import Segments
from mlctl.rollout.daemon.shadow import disagreements as kept
from mlctl.rollout.daemon.shadow.disagreements import Disagreements
from mlctl.rollout.domain.shadow.join import AnswerSide, Joiner, Pair
from tests.rollout.daemon.shadow.recorded import write_segment


def pairs(folder: Path, ids: list[str]) -> list[Pair]:
    numbers = list(range(len(ids)))
    write_segment(
        folder / "live", "1", ids, {"y": [float(n) for n in numbers]}, inputs={"x": numbers}
    )
    write_segment(folder / "candidate", "1", ids, {"y": [-float(n) for n in numbers]})
    joiner = Joiner(10, 1000)
    for side in AnswerSide:
        found = list(joiner.join(side, Segments(folder / side).new(), 0.0))
    return found


def test_disagreements__pairs__keep_inputs_and_both_answers(tmp_path: Path) -> None:
    sample = Disagreements(tmp_path / "kept" / "1.parquet")
    sample.add(pairs(tmp_path, ["a", "b", "c"])[1:])
    table = pq.read_table(sample.path)
    assert table.column_names == ["request_id", "row", "at", "in.x", "live.y", "candidate.y"]
    assert table.to_pylist()[0] == {
        "request_id": "b",
        "row": 0,
        "at": datetime.fromtimestamp(1.0, UTC),
        "in.x": 1,
        "live.y": 1.0,
        "candidate.y": -1.0,
    }
    assert len(table) == 2


def test_disagreements__after_a_restart__continue_the_file(tmp_path: Path) -> None:
    found = pairs(tmp_path, ["a", "b"])
    Disagreements(tmp_path / "1.parquet").add(found[:1])
    Disagreements(tmp_path / "1.parquet").add(found[1:])
    assert pq.read_table(tmp_path / "1.parquet").column("request_id").to_pylist() == ["a", "b"]


def test_disagreements__more_than_the_limit__are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "MAX_ROWS", 3)
    found = pairs(tmp_path, [str(n) for n in range(10)])
    sample = Disagreements(tmp_path / "1.parquet")
    sample.add(found)
    sample.add(found)
    assert len(pq.read_table(sample.path)) == 3


def test_disagreements__deleted_segments__are_left_out(tmp_path: Path) -> None:
    found = pairs(tmp_path, ["a"])
    found[0].live.segment.unlink()
    sample = Disagreements(tmp_path / "1.parquet")
    sample.add(found)
    assert not sample.path.exists()


def test_disagreements__write_fails__ends_the_sample_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    sample = Disagreements(tmp_path / "file" / "1.parquet")
    sample.add(pairs(tmp_path, ["a"]))
    assert "no more disagreements are kept" in caplog.text
