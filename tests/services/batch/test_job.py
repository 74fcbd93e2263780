"""A whole job: Parquet in, Parquet out, resumed, refused, begun anew."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from bundle.errors import ErrorCode, MlctlError
from bundle.verify import VerifiedBundle
from services.batch.base import SinkRequest
from services.batch.engine import BatchEvent, BatchPhase
from services.batch.folder import FolderSink
from services.batch.job import BatchConfig, RunControl
from services.batch.sinks.parquet import open_sink
from tests.support import tables
from tests.support.bundles import expected, make_bundle


def sink_at(out: Path, commit_rows: int = 1000) -> FolderSink:
    sink = open_sink(SinkRequest(str(out)))
    sink.commit_rows = commit_rows
    return sink


def test_each_row_is_answered_once_beside_what_is_kept(
    bundle: VerifiedBundle, tmp_path: Path
) -> None:
    first = tables.write_rows(tmp_path / "in" / "a.parquet", 2300)
    second = tables.write_rows(tmp_path / "in" / "b.parquet", 1200, first=2300)
    events: list[BatchEvent] = []
    report = tables.score(bundle, tmp_path / "in", sink_at(tmp_path / "out"), events=events)
    found = tables.answers(tmp_path / "out")
    assert found["id"].to_pylist() == list(range(3500))
    np.testing.assert_allclose(
        tables.matrix(found["y"]), expected(np.concatenate([first, second])), rtol=1e-4, atol=1e-5
    )
    assert set(found["mlctl_digest"].to_pylist()) == {bundle.digest}
    assert found.schema.field("mlctl_scored_at").type == pa.timestamp("us", tz="UTC")
    assert (report.totals.rows, report.totals.bad, report.rows) == (3500, 0, 3500)
    assert (tmp_path / "out" / "_SUCCESS").is_file()
    assert json.loads((tmp_path / "out" / "_mlctl" / "summary.json").read_text())["rows"] == 3500
    assert events[0].phase == BatchPhase.STARTED
    assert events[-1].phase == BatchPhase.FINISHED
    assert [event.totals.seen for event in events] == sorted(e.totals.seen for e in events)


def test_answers_do_not_depend_on_threads(bundle: VerifiedBundle, tmp_path: Path) -> None:
    tables.write_rows(tmp_path / "in.parquet", 3000)
    for threads in (1, 4):
        tables.score(
            bundle, tmp_path / "in.parquet", sink_at(tmp_path / f"{threads}"), threads=threads
        )
    one, four = (tables.answers(tmp_path / str(n)).drop_columns("mlctl_scored_at") for n in (1, 4))
    assert one.equals(four)


def test_a_finished_job_is_left_as_it_is(bundle: VerifiedBundle, tmp_path: Path) -> None:
    tables.write_rows(tmp_path / "in.parquet", 1500)
    tables.score(bundle, tmp_path / "in.parquet", sink_at(tmp_path / "out"))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("part-*")}
    events: list[BatchEvent] = []
    report = tables.score(bundle, tmp_path / "in.parquet", sink_at(tmp_path / "out"), events=events)
    assert (report.rows, report.totals.rows, events) == (0, 1500, [])
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("part-*")}


def test_a_stopped_job_goes_on_where_it_was(bundle: VerifiedBundle, tmp_path: Path) -> None:
    tables.write_rows(tmp_path / "in.parquet", 20_000)
    stop = threading.Event()

    def stop_early(event: BatchEvent) -> None:
        if event.phase == BatchPhase.COMMITTED:
            stop.set()

    with pytest.raises(MlctlError, match="all of them committed") as caught:
        tables.score(
            bundle,
            tmp_path / "in.parquet",
            sink_at(tmp_path / "out", 500),
            control=RunControl(watch=stop_early, stop=stop),
        )
    assert caught.value.code is ErrorCode.INTERRUPTED
    part = tables.answers(tmp_path / "out").num_rows
    assert 0 < part < 20_000
    assert not (tmp_path / "out" / "_SUCCESS").exists()
    report = tables.score(bundle, tmp_path / "in.parquet", sink_at(tmp_path / "out", 500))
    assert report.rows == 20_000 - part
    assert tables.answers(tmp_path / "out")["id"].to_pylist() == list(range(20_000))


def test_another_job_is_refused_with_what_changed(bundle: VerifiedBundle, tmp_path: Path) -> None:
    tables.write_rows(tmp_path / "in.parquet", 1000)
    tables.score(bundle, tmp_path / "in.parquet", sink_at(tmp_path / "out"))
    other = make_bundle(tmp_path / "other", scale=3.0)
    with pytest.raises(MlctlError, match=f"model digest was {bundle.digest}, is {other.digest}"):
        tables.score(other, tmp_path / "in.parquet", sink_at(tmp_path / "out"))
    changed = BatchConfig(keep=("id",), filter="id < 10", unit_rows=500)
    with pytest.raises(MlctlError, match="filter was null, is") as caught:
        tables.score(bundle, tmp_path / "in.parquet", sink_at(tmp_path / "out"), wanted=changed)
    assert caught.value.code is ErrorCode.JOB_CHANGED
    tables.write_rows(tmp_path / "in.parquet", 1200)
    with pytest.raises(MlctlError, match="input bytes was"):
        tables.score(bundle, tmp_path / "in.parquet", sink_at(tmp_path / "out"))
    report = tables.score(other, tmp_path / "in.parquet", sink_at(tmp_path / "out"), restart=True)
    assert report.rows == 1200
    assert set(tables.answers(tmp_path / "out")["mlctl_digest"].to_pylist()) == {other.digest}


def test_the_filter_leaves_rows_out_and_counts_them(bundle: VerifiedBundle, tmp_path: Path) -> None:
    tables.write_rows(tmp_path / "in.parquet", 1000)
    wanted = BatchConfig(keep=("id",), filter="id >= 100 and id < 900", unit_rows=300)
    report = tables.score(bundle, tmp_path / "in.parquet", sink_at(tmp_path / "out"), wanted=wanted)
    assert tables.answers(tmp_path / "out")["id"].to_pylist() == list(range(100, 900))
    assert (report.totals.rows, report.totals.skipped) == (800, 200)


def test_bad_rows_are_told_with_their_place_and_values(
    bundle: VerifiedBundle, tmp_path: Path
) -> None:
    x = tables.inputs(1000)
    columns: list[list[float] | None] = x.tolist()
    columns[7] = None
    columns[503] = [1.0, 2.0]
    columns[900] = [1.0, None, 3.0, float("nan")]  # type: ignore[list-item]
    column = pa.array(columns, pa.list_(pa.float32()))
    parquet.write_table(pa.table({"id": range(1000), "x": column}), tmp_path / "in.parquet")
    report = tables.score(bundle, tmp_path / "in.parquet", sink_at(tmp_path / "out"))
    lines = (tmp_path / "out" / "_mlctl" / "quarantine.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {
            "unit": "00000000", "origin": "in.parquet", "row": 7,
            "reason": "column 'x' is null", "values": {"id": 7, "x": None},
        },
        {
            "unit": "00000001", "origin": "in.parquet", "row": 503,
            "reason": "column 'x' has 2 values, expected 4", "values": {"id": 503, "x": [1.0, 2.0]},
        },
        {
            "unit": "00000001", "origin": "in.parquet", "row": 900,
            "reason": "column 'x' is null",
            "values": {"id": 900, "x": [1.0, None, 3.0, "nan"]},
        },
    ]  # fmt: skip
    assert (report.totals.rows, report.totals.bad) == (997, 3)
    good = sorted(set(range(1000)) - {7, 503, 900})
    found = tables.answers(tmp_path / "out")
    assert found["id"].to_pylist() == good
    np.testing.assert_allclose(tables.matrix(found["y"]), expected(x[good]), rtol=1e-4, atol=1e-5)


def test_parquet__null_list_of_fixed_size__is_a_bad_row(
    bundle: VerifiedBundle, tmp_path: Path
) -> None:
    x = tables.inputs(2000)
    empty = {3, 999, 1000, 1777}
    rows = pa.table(
        {
            "x": pa.array(
                [None if row in empty else each for row, each in enumerate(x.tolist())],
                pa.list_(pa.float32(), tables.FEATURES),
            ),
            "id": range(2000),
            # Types that Parquet itself does not have.
            "name": pa.array([f"n{row % 7}" for row in range(2000)]).dictionary_encode(),
            "text": pa.array(["a"] * 2000, pa.large_string()),
            "at": pa.array(range(2000), pa.timestamp("us", "Europe/Berlin")),
        }
    )
    parquet.write_table(rows, tmp_path / "in.parquet", row_group_size=300)
    wanted = BatchConfig(keep=("id", "name", "text", "at"), unit_rows=130)
    sink = sink_at(tmp_path / "out")
    report = tables.score(bundle, tmp_path / "in.parquet", sink, wanted=wanted)
    lines = (tmp_path / "out" / "_mlctl" / "quarantine.jsonl").read_text().splitlines()
    reasons = [(each["row"], each["reason"]) for each in map(json.loads, lines)]
    assert reasons == [(row, "column 'x' is null") for row in sorted(empty)]
    assert report.totals.rows == 1996
    found = tables.answers(tmp_path / "out")
    good = [row for row in range(2000) if row not in empty]
    assert found.select(wanted.keep).to_pylist() == rows.select(wanted.keep).take(good).to_pylist()
    np.testing.assert_allclose(tables.matrix(found["y"]), expected(x[good]), rtol=1e-4, atol=1e-5)


def test_too_many_bad_rows_stop_the_job(bundle: VerifiedBundle, tmp_path: Path) -> None:
    x = tables.inputs(4000)
    x[1000:1100] = np.nan
    parquet.write_table(tables.table(x), tmp_path / "in.parquet")
    wanted = BatchConfig(keep=("id",), unit_rows=500, forbid_nan=True)
    with pytest.raises(MlctlError, match="more than --max-errors 1%") as caught:
        tables.score(bundle, tmp_path / "in.parquet", sink_at(tmp_path / "out", 500), wanted=wanted)
    assert caught.value.code is ErrorCode.TOO_MANY_BAD_ROWS
    report = tables.score(
        bundle,
        tmp_path / "in.parquet",
        sink_at(tmp_path / "out", 500),
        wanted=wanted,
        limit="100",
    )
    assert (report.totals.rows, report.totals.bad) == (3900, 100)


def test_answers_that_are_not_finite_can_be_refused(bundle: VerifiedBundle, tmp_path: Path) -> None:
    x = tables.inputs(600)
    x[[3, 599]] = np.inf
    parquet.write_table(tables.table(x), tmp_path / "in.parquet")
    wanted = BatchConfig(keep=("id",), unit_rows=500, finite_outputs=True)
    report = tables.score(bundle, tmp_path / "in.parquet", sink_at(tmp_path / "out"), wanted=wanted)
    assert (report.totals.rows, report.totals.bad) == (598, 2)
    assert not {3, 599} & set(tables.answers(tmp_path / "out")["id"].to_pylist())


def test_a_missing_column_fails_before_any_row(bundle: VerifiedBundle, tmp_path: Path) -> None:
    parquet.write_table(pa.table({"id": [1], "other": [2.0]}), tmp_path / "in.parquet")
    with pytest.raises(
        MlctlError, match=r"no column feeds input 'x'; the columns are: id"
    ) as caught:
        tables.score(bundle, tmp_path / "in.parquet", sink_at(tmp_path / "out"))
    assert "--map" in caught.value.hint
    assert not (tmp_path / "out").exists()


def test_a_file_that_differs_from_the_first_fails_before_any_row(
    bundle: VerifiedBundle, tmp_path: Path
) -> None:
    tables.write_rows(tmp_path / "in" / "a.parquet", 10)
    parquet.write_table(pa.table({"id": [1], "x": [2.0]}), tmp_path / "in" / "b.parquet")
    with pytest.raises(MlctlError, match=r"but b.parquet has double"):
        tables.score(bundle, tmp_path / "in", sink_at(tmp_path / "out"))
    assert not list((tmp_path / "out").glob("part-*"))


def test_parts_go_to_folders_of_their_keys(bundle: VerifiedBundle, tmp_path: Path) -> None:
    rows = tables.table(tables.inputs(900))
    keys = pa.array([["DE", "A T", None][index % 3] for index in range(900)])
    parquet.write_table(rows.append_column("land", keys), tmp_path / "in.parquet")
    wanted = BatchConfig(keep=("id",), partition_by=("land",), unit_rows=500)
    tables.score(
        bundle,
        tmp_path / "in.parquet",
        sink_at(tmp_path / "out"),
        wanted=wanted,
    )
    found = parquet.read_table(tmp_path / "out", partitioning="hive").to_pylist()
    assert sorted((row["id"], row["land"]) for row in found) == [
        (index, ["DE", "A T", None][index % 3]) for index in range(900)
    ]


def test_rows_of_a_model_whose_rows_meet_are_asked_alone(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "bundle", row_independent=False)
    x = tables.write_rows(tmp_path / "in.parquet", 20)
    tables.score(bundle, tmp_path / "in.parquet", sink_at(tmp_path / "out"))
    found = tables.matrix(tables.answers(tmp_path / "out")["y"])
    np.testing.assert_allclose(found, x * 2 + x, rtol=1e-4, atol=1e-5)
