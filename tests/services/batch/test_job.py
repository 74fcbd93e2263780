"""A whole job: Parquet in, Parquet out, resumed, refused, begun anew."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.batch.filters import Filter
from mlctl.services.batch.folder import FolderSink
from mlctl.services.batch.job import BatchConfig, run_job
from mlctl.services.batch.local_executor import local_executor
from mlctl.services.batch.progress import BatchEvent, BatchPhase, RunControl
from mlctl.services.batch.scoring import PieceScorer
from mlctl.services.batch.sinks import open_sink
from mlctl.services.batch.sources import open_source
from mlctl.services.batch.units import Marker, ScoredPiece, Sink
from tests.support import tables
from tests.support.bundles import expected, make_bundle
from tests.support.transforms import TOKENIZER, make_text_bundle


def sink_at(out: Path) -> Sink:
    return open_sink(str(out))


def test_job__rows_of_a_file__are_answered_once_with_kept_columns(
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
    assert (report.totals.rows, report.totals.bad, report.rows) == (3500, 0, 3500)
    assert (tmp_path / "out" / "_SUCCESS").is_file()
    assert json.loads((tmp_path / "out" / "_mlctl" / "summary.json").read_text())["rows"] == 3500
    assert events[0].phase == BatchPhase.STARTED
    assert events[-1].phase == BatchPhase.FINISHED
    assert [event.totals.seen for event in events] == sorted(e.totals.seen for e in events)


def test_job__any_number_of_threads__gives_the_same_answers(
    bundle: VerifiedBundle, tmp_path: Path
) -> None:
    tables.write_rows(tmp_path / "in.parquet", 3000)
    for threads in (1, 4):
        tables.score(
            bundle, tmp_path / "in.parquet", sink_at(tmp_path / f"{threads}"), threads=threads
        )
    one, four = (tables.answers(tmp_path / str(n)) for n in (1, 4))
    assert one.equals(four)


@pytest.mark.parametrize(("threads", "waits"), [(1, False), (2, False), (1, True), (2, True)])
def test_job__fewer_units_than_threads__the_others_score_pieces_of_them(
    bundle: VerifiedBundle,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    threads: int,
    *,
    waits: bool,
) -> None:
    """Where a sink waits, they score all pieces."""
    scoring, committing = set[int](), set[int]()
    score, commit = PieceScorer.score, FolderSink.commit

    def noted_score(*arguments: Any) -> ScoredPiece:
        scoring.add(threading.get_ident())
        return score(*arguments)

    def noted_commit(*arguments: Any) -> Marker:
        committing.add(threading.get_ident())
        return commit(*arguments)

    monkeypatch.setattr(PieceScorer, "score", noted_score)
    monkeypatch.setattr(FolderSink, "commit", noted_commit)
    tables.write_rows(tmp_path / "in.parquet", 900)
    config = BatchConfig(keep=("id",))
    out: Any = sink_at(tmp_path / "out")
    out.waits = waits
    tables.score(bundle, tmp_path / "in.parquet", out, threads=threads, config=config)
    assert len(committing) == 1
    assert bool(scoring - committing) == (threads == 2 or waits)
    assert not waits or not scoring & committing


def test_job__finished__is_not_repeated(bundle: VerifiedBundle, tmp_path: Path) -> None:
    tables.write_rows(tmp_path / "in.parquet", 1500)
    tables.score(bundle, tmp_path / "in.parquet", sink_at(tmp_path / "out"))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("part-*")}
    events: list[BatchEvent] = []
    report = tables.score(bundle, tmp_path / "in.parquet", sink_at(tmp_path / "out"), events=events)
    assert (report.rows, report.totals.rows, events) == (0, 1500, [])
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("part-*")}


def test_job__stopped_and_run_again__resumes(bundle: VerifiedBundle, tmp_path: Path) -> None:
    tables.write_rows(tmp_path / "in.parquet", 20_000)
    stop = threading.Event()

    def stop_early(event: BatchEvent) -> None:
        if event.phase == BatchPhase.COMMITTED:
            stop.set()

    with pytest.raises(MlctlError, match="all of them committed") as caught:
        tables.score(
            bundle,
            tmp_path / "in.parquet",
            sink_at(tmp_path / "out"),
            control=RunControl(watch=stop_early, stop=stop),
        )
    assert caught.value.code is ErrorCode.INTERRUPTED
    part = tables.answers(tmp_path / "out").num_rows
    assert 0 < part < 20_000
    assert not (tmp_path / "out" / "_SUCCESS").exists()
    report = tables.score(bundle, tmp_path / "in.parquet", sink_at(tmp_path / "out"))
    assert report.rows == 20_000 - part
    assert tables.answers(tmp_path / "out")["id"].to_pylist() == list(range(20_000))


def test_job__another_fingerprint__is_rejected_with_the_changes(
    bundle: VerifiedBundle, tmp_path: Path
) -> None:
    tables.write_rows(tmp_path / "in.parquet", 1000)
    tables.score(bundle, tmp_path / "in.parquet", sink_at(tmp_path / "out"))
    other = make_bundle(tmp_path / "other", scale=3.0)
    with pytest.raises(MlctlError, match=f"model digest was {bundle.digest}, is {other.digest}"):
        tables.score(other, tmp_path / "in.parquet", sink_at(tmp_path / "out"))
    changed = BatchConfig(keep=("id",), filter="id < 10", unit_rows=500)
    with pytest.raises(MlctlError, match="filter was null, is") as caught:
        tables.score(bundle, tmp_path / "in.parquet", sink_at(tmp_path / "out"), config=changed)
    assert caught.value.code is ErrorCode.JOB_CHANGED
    tables.write_rows(tmp_path / "in.parquet", 1200)
    with pytest.raises(MlctlError, match="input bytes was"):
        tables.score(bundle, tmp_path / "in.parquet", sink_at(tmp_path / "out"))
    report = tables.score(other, tmp_path / "in.parquet", sink_at(tmp_path / "out"), restart=True)
    assert report.rows == 1200
    assert set(tables.answers(tmp_path / "out")["mlctl_digest"].to_pylist()) == {other.digest}


def test_job__keep_all__answers_have_every_column(bundle: VerifiedBundle, tmp_path: Path) -> None:
    tables.write_rows(tmp_path / "in.parquet", 100)
    config = BatchConfig(keep=("*",))
    tables.score(bundle, tmp_path / "in.parquet", sink_at(tmp_path / "out"), config=config)
    rows = parquet.read_table(tmp_path / "in.parquet")
    found = tables.answers(tmp_path / "out")
    assert found.select(rows.schema.names).to_pylist() == rows.to_pylist()
    assert found.schema.names == [*rows.schema.names, "y", "mlctl_digest"]


def test_job__filter__skips_rows_and_counts_them(bundle: VerifiedBundle, tmp_path: Path) -> None:
    tables.write_rows(tmp_path / "in.parquet", 1000)
    config = BatchConfig(keep=("id",), filter="id >= 100 and id < 900", unit_rows=300)
    report = tables.score(bundle, tmp_path / "in.parquet", sink_at(tmp_path / "out"), config=config)
    assert tables.answers(tmp_path / "out")["id"].to_pylist() == list(range(100, 900))
    assert (report.totals.rows, report.totals.skipped) == (800, 200)


def test_quarantine__bad_rows__have_file_row_reason_and_columns(
    bundle: VerifiedBundle, tmp_path: Path
) -> None:
    x = tables.inputs(1000)
    columns: list[list[float] | None] = x.tolist()
    columns[7] = None
    columns[503] = [1.0, 2.0]
    columns[900] = [1.0, None, 3.0, 4.0]  # type: ignore[list-item]
    column = pa.array(columns, pa.list_(pa.float32()))
    rows = pa.table({"id": range(1000), "x": column})
    parquet.write_table(rows, tmp_path / "in.parquet", row_group_size=300)
    report = tables.score(bundle, tmp_path / "in.parquet", sink_at(tmp_path / "out"))
    reasons = {
        7: "column 'x' is null",
        503: "column 'x' has 2 values, expected 4",
        900: "column 'x' is null",
    }
    assert tables.quarantine(tmp_path / "out") == [
        {
            "id": row, "x": columns[row], "mlctl_file": "in.parquet", "mlctl_row": row,
            "mlctl_reason": reason, "mlctl_text": None,
        }
        for row, reason in reasons.items()
    ]  # fmt: skip
    assert (report.totals.rows, report.totals.bad) == (997, 3)
    good = sorted(set(range(1000)) - set(reasons))
    found = tables.answers(tmp_path / "out")
    assert found["id"].to_pylist() == good
    np.testing.assert_allclose(tables.matrix(found["y"]), expected(x[good]), rtol=1e-4, atol=1e-5)


def test_quarantine__run_over_it_with_a_fixed_model__answers_the_rows(tmp_path: Path) -> None:
    broken = make_text_bundle(tmp_path / "texts")
    fixed = make_text_bundle(tmp_path / "fixed", TOKENIZER.replace("raise ValueError", "print"))
    texts = ["" if row in (7, 300) else "one" for row in range(500)]
    rows = pa.table({"id": range(500), "text": texts})
    parquet.write_table(rows, tmp_path / "in.parquet", row_group_size=100)
    out = tmp_path / "out"
    report = tables.score(broken, tmp_path / "in.parquet", sink_at(out))
    assert (report.totals.rows, report.totals.bad) == (498, 2)
    again = tables.score(fixed, out / "_mlctl" / "quarantine", sink_at(out / "redrive"))
    assert (again.totals.rows, again.totals.bad) == (2, 0)
    assert tables.answers(out / "redrive")["id"].to_pylist() == [7, 300]
    assert tables.score(broken, tmp_path / "in.parquet", sink_at(out)).rows == 0


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
    config = BatchConfig(keep=("id", "name", "text", "at"), unit_rows=130)
    sink = sink_at(tmp_path / "out")
    report = tables.score(bundle, tmp_path / "in.parquet", sink, config=config)
    bad = tables.quarantine(tmp_path / "out")
    reasons = [(row["mlctl_row"], row["mlctl_reason"]) for row in bad]
    assert reasons == [(row, "column 'x' is null") for row in sorted(empty)]
    assert report.totals.rows == 1996
    found = tables.answers(tmp_path / "out")
    good = [row for row in range(2000) if row not in empty]
    assert found.select(config.keep).to_pylist() == rows.select(config.keep).take(good).to_pylist()
    np.testing.assert_allclose(tables.matrix(found["y"]), expected(x[good]), rtol=1e-4, atol=1e-5)


def test_job__too_many_bad_rows__stops(bundle: VerifiedBundle, tmp_path: Path) -> None:
    x = tables.inputs(4000)
    x[1000:1100] = np.nan
    parquet.write_table(tables.table(x), tmp_path / "in.parquet")
    config = BatchConfig(keep=("id",), unit_rows=500, forbid_nan=True)
    with pytest.raises(MlctlError, match="more than --max-errors 1%") as caught:
        tables.score(bundle, tmp_path / "in.parquet", sink_at(tmp_path / "out"), config=config)
    assert caught.value.code is ErrorCode.TOO_MANY_BAD_ROWS
    report = tables.score(
        bundle,
        tmp_path / "in.parquet",
        sink_at(tmp_path / "out"),
        config=config,
        limit="100",
    )
    assert (report.totals.rows, report.totals.bad) == (3900, 100)


def test_job__finite_outputs__other_answers_are_bad_rows(
    bundle: VerifiedBundle, tmp_path: Path
) -> None:
    x = tables.inputs(600)
    x[[3, 599]] = np.inf
    parquet.write_table(tables.table(x), tmp_path / "in.parquet")
    config = BatchConfig(keep=("id",), unit_rows=500, finite_outputs=True)
    report = tables.score(bundle, tmp_path / "in.parquet", sink_at(tmp_path / "out"), config=config)
    assert (report.totals.rows, report.totals.bad) == (598, 2)
    assert not {3, 599} & set(tables.answers(tmp_path / "out")["id"].to_pylist())


def test_job__missing_column__fails_before_any_row(bundle: VerifiedBundle, tmp_path: Path) -> None:
    parquet.write_table(pa.table({"id": [1], "other": [2.0]}), tmp_path / "in.parquet")
    with pytest.raises(
        MlctlError, match=r"no column feeds input 'x'; the columns are: id"
    ) as caught:
        tables.score(bundle, tmp_path / "in.parquet", sink_at(tmp_path / "out"))
    assert "--map" in caught.value.hint
    assert not (tmp_path / "out").exists()


def test_job__file_with_another_schema__fails_before_any_row(
    bundle: VerifiedBundle, tmp_path: Path
) -> None:
    tables.write_rows(tmp_path / "in" / "a.parquet", 10)
    parquet.write_table(pa.table({"id": [1], "x": [2.0]}), tmp_path / "in" / "b.parquet")
    with pytest.raises(MlctlError, match=r"but b.parquet has double"):
        tables.score(bundle, tmp_path / "in", sink_at(tmp_path / "out"))
    assert not list((tmp_path / "out").glob("part-*"))


def test_job__partitioned_output__has_a_folder_for_each_key(
    bundle: VerifiedBundle, tmp_path: Path
) -> None:
    rows = tables.table(tables.inputs(900))
    keys = pa.array([["DE", "A T", None][index % 3] for index in range(900)])
    parquet.write_table(rows.append_column("land", keys), tmp_path / "in.parquet")
    config = BatchConfig(keep=("id",), partition_by=("land",), unit_rows=500)
    tables.score(
        bundle,
        tmp_path / "in.parquet",
        sink_at(tmp_path / "out"),
        config=config,
    )
    found = parquet.read_table(tmp_path / "out", partitioning="hive").to_pylist()
    assert sorted((row["id"], row["land"]) for row in found) == [
        (index, ["DE", "A T", None][index % 3]) for index in range(900)
    ]


def test_scoring__rows_that_influence_each_other__are_scored_one_by_one(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "bundle", row_independent=False)
    x = tables.write_rows(tmp_path / "in.parquet", 20)
    tables.score(bundle, tmp_path / "in.parquet", sink_at(tmp_path / "out"))
    found = tables.matrix(tables.answers(tmp_path / "out")["y"])
    np.testing.assert_allclose(found, x * 2 + x, rtol=1e-4, atol=1e-5)


def test_filter__statistics_exclude_row_groups__they_are_not_read(tmp_path: Path) -> None:
    tables.write_rows(tmp_path / "in.parquet", 3000, group=500)
    source = open_source(str(tmp_path / "in.parquet"), 500)
    plan = source.plan(["id"], Filter("id >= 1200 and id < 1400"))
    assert [(unit.rows, unit.part[1]) for unit in plan.units] == [(500, (2,))]
    assert (plan.rows, plan.pruned) == (3000, 2500)


def test_sources__hive_partitions__are_columns_and_are_pruned(
    bundle: VerifiedBundle, tmp_path: Path
) -> None:
    for index, day in enumerate(("2026-11-20", "2026-11-21", "__HIVE_DEFAULT_PARTITION__")):
        tables.write_rows(tmp_path / f"in/day={day}/land={index}/a.parquet", 100, first=100 * index)
    config = BatchConfig(keep=("id", "day", "land"), filter="day == '2026-11-21'")
    tables.score(bundle, tmp_path / "in", sink_at(tmp_path / "out"), config=config)
    found = tables.answers(tmp_path / "out").to_pylist()
    assert [(r["id"], r["day"], r["land"]) for r in found] == [
        (row, "2026-11-21", 1) for row in range(100, 200)
    ]
    config = BatchConfig(keep=("id", "day"))
    tables.score(bundle, tmp_path / "in", sink_at(tmp_path / "all"), config=config)
    days = tables.answers(tmp_path / "all")["day"].to_pylist()
    assert days == ["2026-11-20"] * 100 + ["2026-11-21"] * 100 + [None] * 100


def test_batch__empty_and_zero_row_files__give_no_rows(
    bundle: VerifiedBundle, tmp_path: Path
) -> None:
    tables.write_rows(tmp_path / "in/a.parquet", 10)
    tables.write_rows(tmp_path / "in/b.parquet", 0)
    assert tables.score(bundle, tmp_path / "in", sink_at(tmp_path / "out")).totals.rows == 10
    tables.write_rows(tmp_path / "none.parquet", 0)
    report = tables.score(bundle, tmp_path / "none.parquet", sink_at(tmp_path / "empty"))
    assert (report.totals.rows, report.totals.units) == (0, 0)
    assert (tmp_path / "empty" / "_SUCCESS").is_file()


def test_stop__unit_outlasts_the_grace__is_abandoned_without_a_marker(tmp_path: Path) -> None:
    slow = TOKENIZER.replace(
        "def preprocess(inputs):", "def preprocess(inputs):\n    import time; time.sleep(0.2)"
    )
    bundle = make_text_bundle(tmp_path / "texts", slow)
    rows = pa.table({"id": range(500), "text": ["one"] * 500})
    parquet.write_table(rows, tmp_path / "in.parquet", row_group_size=100)
    stop = threading.Event()
    timer = threading.Timer(0.3, stop.set)
    timer.start()
    with pytest.raises(MlctlError) as caught:
        run_job(
            bundle,
            open_source(str(tmp_path / "in.parquet"), 500),
            sink_at(tmp_path / "out"),
            BatchConfig(keep=("id",)),
            local_executor(1),
            RunControl(stop=stop, grace=0.0),
            piece_rows=10,
        )
    timer.join()
    assert caught.value.code is ErrorCode.INTERRUPTED
    assert not list((tmp_path / "out" / "_mlctl").glob("0*.json"))
    done = tables.score(bundle, tmp_path / "in.parquet", sink_at(tmp_path / "out2"))
    assert done.totals.rows == 500
