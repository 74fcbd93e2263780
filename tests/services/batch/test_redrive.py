"""Redrive: rows that pass join the answers exactly once, the others stay."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from bundle.errors import ErrorCode, MlctlError
from bundle.verify import VerifiedBundle, verify
from services.batch.base import SinkRequest, UnitResult
from services.batch.folder import FolderSink
from services.batch.job import BatchConfig, BatchReport, RunControl, local_executor
from services.batch.redrive import Redriven, redrive
from services.batch.sinks import open_sink as open_any
from services.batch.sinks.parquet import open_sink
from tests.support import tables
from tests.support.bundles import make_bundle
from tests.support.transforms import TOKENIZER, make_text_bundle

EMPTY = {5, 700, 1900}


def sink_at(out: Path) -> FolderSink:
    return open_sink(SinkRequest(str(out)))


def again(out: Path, bento: str | None = None) -> Redriven:
    return redrive(
        sink_at(out), lambda name: verify(Path(name)), bento, local_executor(2), RunControl()
    )


@pytest.fixture
def scored(tmp_path: Path) -> Path:
    """Answers of 2000 texts of which three have no words, which the transform refuses."""
    bundle = make_text_bundle(tmp_path / "bundle")
    texts = ["" if row in EMPTY else "one two" for row in range(2000)]
    parquet.write_table(pa.table({"id": range(2000), "text": texts}), tmp_path / "in.parquet")
    tables.score(bundle, tmp_path / "in.parquet", sink_at(tmp_path / "out"))
    return tmp_path / "out"


def lenient(folder: Path) -> VerifiedBundle:
    """A version of the same model that takes empty texts."""
    source = TOKENIZER.replace("raise ValueError", "print")
    assert source != TOKENIZER
    return make_text_bundle(folder, source)


def test_the_same_model_refuses_the_same_rows(scored: Path) -> None:
    done = again(scored)
    assert (done.passed, done.left) == (0, 3)
    assert tables.answers(scored).num_rows == 1997


def test_a_folder_that_is_not_there_is_told_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(MlctlError, match="there is no folder") as caught:
        again(tmp_path / "typo")
    assert caught.value.code is ErrorCode.NOT_FOUND
    assert not (tmp_path / "typo").exists()


def test_a_mended_model_answers_them_once(scored: Path, tmp_path: Path) -> None:
    new = lenient(tmp_path / "new")
    done = again(scored, str(new.root))
    assert (done.passed, done.left, done.report.totals.rows) == (3, 0, 2000)
    found = tables.answers(scored)
    assert found["id"].to_pylist() == list(range(2000))
    by_digest = dict(zip(found["id"].to_pylist(), found["mlctl_digest"].to_pylist(), strict=True))
    assert {row for row, digest in by_digest.items() if digest == new.digest} == EMPTY
    assert not (scored / "_mlctl" / "quarantine.jsonl").exists()
    summary = json.loads((scored / "_mlctl" / "summary.json").read_text())
    assert (summary["rows"], summary["bad"]) == (2000, 0)
    assert again(scored, str(new.root)).passed == 0
    assert tables.answers(scored).num_rows == 2000


def test_a_redrive_that_died_before_its_commit_left_nothing(
    scored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = lenient(tmp_path / "new")

    def die(_self: object, _results: list[UnitResult], _parts: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("services.batch.ledger.Ledger.commit", die)
        with pytest.raises(KeyboardInterrupt):
            again(scored, str(new.root))
    assert again(scored, str(new.root)).passed == 3
    assert tables.answers(scored)["id"].to_pylist() == list(range(2000))


def test_a_model_with_other_outputs_is_refused(scored: Path, tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "other")
    with pytest.raises(MlctlError) as caught:
        again(scored, str(bundle.root))
    assert caught.value.code is ErrorCode.INVALID_INPUT


def test_a_job_that_was_not_complete_still_goes_on(bundle: VerifiedBundle, tmp_path: Path) -> None:
    x = tables.inputs(3000)
    x[1000:1100] = float("nan")
    parquet.write_table(tables.table(x), tmp_path / "in.parquet")
    wanted = BatchConfig(keep=("id",), unit_rows=500, forbid_nan=True)

    def run(limit: str) -> BatchReport:
        sink = sink_at(tmp_path / "out")
        sink.commit_rows = 500
        return tables.score(
            bundle, tmp_path / "in.parquet", sink, wanted=wanted, limit=limit, threads=1
        )

    with pytest.raises(MlctlError) as caught:
        run("50")
    assert caught.value.code is ErrorCode.TOO_MANY_BAD_ROWS
    assert again(tmp_path / "out").left == 100
    assert not (tmp_path / "out" / "_SUCCESS").exists()
    assert run("100").totals.rows == 2900
    ids = tables.answers(tmp_path / "out")["id"].to_pylist()
    assert ids == [*range(1000), *range(1100, 3000)]


def test_what_was_no_row_stays_and_keeps_no_other_from_passing(tmp_path: Path) -> None:
    bundle = make_text_bundle(tmp_path / "bundle")
    values = [1, 2, "text", 4, [5]]
    lines = [json.dumps({"id": value, "text": "" if value == 2 else "one"}) for value in values]
    (tmp_path / "in.jsonl").write_text("\n".join([*lines, "{broken"]))
    out = tmp_path / "out"
    tables.score(bundle, tmp_path / "in.jsonl", sink_at(out), limit="5")
    assert tables.answers(out)["id"].to_pylist() == [1, 4]
    done = again(out, str(lenient(tmp_path / "new").root))
    assert (done.passed, done.left) == (1, 3)
    assert tables.answers(out)["id"].to_pylist() == [1, 2, 4]


@pytest.mark.parametrize(
    "place",
    [
        "{}",
        "sqlite://{}/typo.db?table=scores",
        "sqlite://{}/other.db?table=scores",
        "duckdb://{}/typo.db?table=scores",
        "precomputed://scores",
    ],
)
def test_a_place_without_a_job_is_refused_and_nothing_is_made(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLCTL_PRECOMPUTED_STORE", str(tmp_path))
    (tmp_path / "out").mkdir()
    with sqlite3.connect(tmp_path / "out" / "other.db") as other:
        other.execute("PRAGMA journal_mode=WAL")  # which has files of its own while it is open
        other.execute("CREATE TABLE scores (x)")
    other.close()
    sink = open_any(SinkRequest(place.format(tmp_path / "out")))
    with pytest.raises(MlctlError, match="no batch job") as caught:
        redrive(sink, lambda name: verify(Path(name)), None, local_executor(1), RunControl())
    assert caught.value.code is ErrorCode.NOT_FOUND
    found = [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")]
    assert sorted(found) == ["out", "out/other.db"]


def test_special_values_survive_the_quarantine(bundle: VerifiedBundle, tmp_path: Path) -> None:
    x = tables.inputs(200)
    x[3] = [float("nan"), float("inf"), -1.5, 0.0]
    parquet.write_table(tables.table(x), tmp_path / "in.parquet")
    wanted = BatchConfig(keep=("id",), unit_rows=100, forbid_nan=True)
    tables.score(bundle, tmp_path / "in.parquet", sink_at(tmp_path / "out"), wanted=wanted)
    with sink_at(tmp_path / "out") as sink:
        sink.stored()
        (bad,) = sink.quarantined()
    assert bad.bad.values == {"id": 3, "x": ["nan", "inf", -1.5, 0.0]}
    assert again(tmp_path / "out").left == 1


def test_rows_that_pass_go_to_the_folder_of_their_key(tmp_path: Path) -> None:
    bundle = make_text_bundle(tmp_path / "bundle")
    texts = ["" if row == 3 else "one" for row in range(200)]
    lands = ["DE" if row % 2 else "AT" for row in range(200)]
    table = pa.table({"id": range(200), "text": texts, "land": lands})
    parquet.write_table(table, tmp_path / "in.parquet")
    wanted = BatchConfig(keep=("id",), partition_by=("land",), unit_rows=50)
    tables.score(bundle, tmp_path / "in.parquet", sink_at(tmp_path / "out"), wanted=wanted)
    assert again(tmp_path / "out", str(lenient(tmp_path / "new").root)).passed == 1
    found = parquet.read_table(tmp_path / "out", partitioning="hive").to_pylist()
    assert sorted((row["id"], row["land"]) for row in found) == list(enumerate(lands))
