"""Scoring on a real Ray, started on this machine for these tests."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from mlctl.bundle.manifest import MODEL_NAME
from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.batch import ray_executor as cluster
from mlctl.services.batch.files import FileSource
from mlctl.services.batch.job import BatchConfig, BatchReport, make_job, make_plan, run_job
from mlctl.services.batch.local_executor import local_executor
from mlctl.services.batch.progress import BatchEvent, BatchPhase, ErrorLimit, RunControl
from mlctl.services.batch.ray_executor import ScoringActor, WorkerSetup, read_files
from mlctl.services.batch.sinks import open_sink
from mlctl.services.batch.sources import open_source
from mlctl.services.batch.units import Marker, Piece, Sink, Source, Unit
from mlctl.services.batch.worker import Scoring
from mlctl.services.layout.pipeline_scorer import VerifiedPipeline
from mlctl.services.layout.scorable import Scorable
from tests.services.layout.test_pipeline_scorer import pipeline
from tests.support import tables
from tests.support.bundles import expected, make_bundle
from tests.support.wait import wait_until

UNIT = 250
ROWS = 12 * UNIT
CONFIG = BatchConfig(keep=("id",), unit_rows=UNIT)


@pytest.fixture(scope="module")
def started() -> Iterator[None]:
    """A Ray that all tests of this module use: starting one takes seconds."""
    with cluster.connected(cluster.LOCAL, 2):
        yield


def sink_at(out: Path) -> Sink:
    return open_sink(str(out))


def score(
    model: Scorable,
    source: Source,
    out: Path,
    control: RunControl | None = None,
    actors: int = 2,
) -> BatchReport:
    return run_job(
        model,
        source,
        sink_at(out),
        CONFIG,
        cluster.ray_executor(None, actors),
        control or RunControl(limit=ErrorLimit(count=10)),
    )


def rows_at(path: Path) -> Source:
    return open_source(str(path), UNIT)


def actors() -> list[psutil.Process]:
    """The processes of actors of this Ray."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "ScoringActor" in " ".join(process.cmdline()):
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def write_wide(place: Path) -> None:
    """Rows in a column for each value, two of them bad."""
    x = tables.inputs(ROWS)
    wide = pa.table({"id": np.arange(len(x)), **{f"x_{i}": x[:, i] for i in range(x.shape[1])}})
    third = wide["x_3"].to_pylist()
    third[7] = third[ROWS - 201] = None
    wide = wide.set_column(4, "x_3", pa.array(third, pa.float32()))
    if place.suffix == ".parquet":
        parquet.write_table(wide, place, row_group_size=UNIT)
    else:
        csv.write_csv(wide, place)


def check_as_local(model: Scorable, place: Path, report: BatchReport, out: Path) -> None:
    """The answers and the bad rows in `out` are those of this process."""
    local = out.with_name("local")
    tables.score(model, place, sink_at(local), limit="10", config=CONFIG)
    assert (report.totals.rows, report.totals.bad) == (ROWS - 2, 2)
    one, other = (tables.answers(at) for at in (out, local))
    assert one.equals(other)
    assert tables.quarantine(out) == tables.quarantine(local)
    names = [sorted(path.name for path in at.glob("part-*")) for at in (out, local)]
    assert names[0] == names[1]


@pytest.mark.slow
@pytest.mark.usefixtures("started")
def test_ray__csv_through_a_pipeline__answers_equal_those_of_threads(tmp_path: Path) -> None:
    whole = VerifiedPipeline.of(pipeline(tmp_path))
    assert whole is not None
    write_wide(tmp_path / "in.csv")
    report = score(whole, rows_at(tmp_path / "in.csv"), tmp_path / "ray", actors=1)
    check_as_local(whole, tmp_path / "in.csv", report, tmp_path / "ray")
    assert report.digest == whole.digest


@pytest.mark.slow
@pytest.mark.usefixtures("started")
def test_ray__actors_killed__each_row_is_answered_once(
    bundle: VerifiedBundle, tmp_path: Path
) -> None:
    write_wide(tmp_path / "in.parquet")
    killed: list[int] = []

    def kill(event: BatchEvent) -> None:
        if event.phase is BatchPhase.COMMITTED and event.rows >= 3 * UNIT and not killed:
            for process in actors():
                process.kill()
                killed.append(process.pid)

    control = RunControl(ErrorLimit(count=10), watch=kill)
    report = score(bundle, rows_at(tmp_path / "in.parquet"), tmp_path / "ray", control)
    # The second one may not have begun yet, on a busy machine.
    assert 1 <= len(killed) <= 2
    check_as_local(bundle, tmp_path / "in.parquet", report, tmp_path / "ray")
    wait_until(lambda: not actors(), what="the actors are gone")


@pytest.mark.slow
@pytest.mark.usefixtures("started")
def test_ray__stopped_job__is_resumed_without_ray(bundle: VerifiedBundle, tmp_path: Path) -> None:
    tables.write_rows(tmp_path / "in.parquet", 16 * UNIT, group=UNIT)
    stop = threading.Event()

    def stop_early(event: BatchEvent) -> None:
        if event.phase is BatchPhase.COMMITTED:
            stop.set()

    before = signal.getsignal(signal.SIGTERM)
    source = rows_at(tmp_path / "in.parquet")
    with pytest.raises(MlctlError) as caught:
        score(bundle, source, tmp_path / "out", RunControl(watch=stop_early, stop=stop), actors=1)
    assert caught.value.code is ErrorCode.INTERRUPTED
    part = tables.answers(tmp_path / "out").num_rows
    assert 0 < part < 16 * UNIT
    assert signal.getsignal(signal.SIGTERM) == before
    tables.score(bundle, tmp_path / "in.parquet", sink_at(tmp_path / "out"), config=CONFIG)
    assert tables.answers(tmp_path / "out")["id"].to_pylist() == list(range(16 * UNIT))


class DeadlySource(FileSource):
    """Ends the process that reads its second unit, unless that made the source."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), UNIT, {})
        self.home = os.getpid()

    def read(self, unit: Unit, columns: Sequence[str], piece_rows: int) -> Iterator[Piece]:
        if unit.id.endswith("1") and os.getpid() != self.home:
            os._exit(137)
        return super().read(unit, columns, piece_rows)


@pytest.mark.slow
@pytest.mark.usefixtures("started")
def test_ray__unit_that_always_kills_its_actor__ends_the_job(
    bundle: VerifiedBundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "_RETRIES", 1)
    tables.write_rows(tmp_path / "in.parquet", 3 * UNIT, group=UNIT)
    source = DeadlySource(tmp_path / "in.parquet")
    with pytest.raises(MlctlError, match="lost a unit 2 times") as caught:
        score(bundle, source, tmp_path / "out", actors=1)
    assert caught.value.code is ErrorCode.CLUSTER_UNAVAILABLE
    assert not (tmp_path / "out" / "_SUCCESS").exists()
    # No row is blamed for it: the same job completes where no process dies.
    report = run_job(
        bundle, source, sink_at(tmp_path / "out"), CONFIG, local_executor(1), RunControl()
    )
    assert (report.totals.rows, report.totals.bad) == (3 * UNIT, 0)


@pytest.mark.slow
@pytest.mark.usefixtures("started")
def test_ray__too_many_bad_rows_in_a_unit__ends_the_job(
    bundle: VerifiedBundle, tmp_path: Path
) -> None:
    rows = tables.table(tables.inputs(UNIT)).to_pydict()
    rows["x"] = [[1.0, 2.0] if index % 2 else values for index, values in enumerate(rows["x"])]
    kinds = pa.schema([("id", pa.int64()), ("x", pa.list_(pa.float32()))])
    parquet.write_table(pa.table(rows, schema=kinds), tmp_path / "in.parquet")
    with pytest.raises(MlctlError, match="max-errors") as caught:
        score(bundle, rows_at(tmp_path / "in.parquet"), tmp_path / "out", actors=1)
    assert caught.value.code is ErrorCode.TOO_MANY_BAD_ROWS


def test_ray__sink_of_one_process__is_rejected(bundle: VerifiedBundle, tmp_path: Path) -> None:
    tables.write_rows(tmp_path / "in.parquet", 10)
    sink = open_sink(f"sqlite://{tmp_path}/out.db?table=t&create=yes")
    with pytest.raises(MlctlError, match="--executor ray writes to folders and buckets"):
        run_job(
            bundle, rows_at(tmp_path / "in.parquet"), sink, CONFIG,
            cluster.ray_executor(None, 1), RunControl(),
        )  # fmt: skip


def setup_of(model: Scorable, folder: Path, x: np.ndarray) -> tuple[WorkerSetup, Unit]:
    parquet.write_table(tables.table(x), folder / "in.parquet")
    source, sink = rows_at(folder / "in.parquet"), sink_at(folder / "out")
    plan, units = make_plan(model, source, CONFIG)
    job = make_job(model, source, plan, CONFIG)
    sink.begin(job)
    scoring = Scoring(model, source, sink, plan, job.schema, job.quarantine)
    (unit,) = units.units
    return WorkerSetup(scoring, read_files(model)), unit


def test_actor__altered_or_other_bundle__is_rejected(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "bundle")
    meant, unit = setup_of(bundle, tmp_path, tables.inputs(3))
    actor = ScoringActor(meant)
    assert actor.open() is None
    marker = actor.process(unit)
    assert isinstance(marker, Marker)
    assert marker.rows == 3
    actor.close()
    altered = dict(meant.files)
    name = f"{bundle.name}/{MODEL_NAME}"
    altered[name] = altered[name].copy()
    altered[name][-1] ^= 1
    for files, code in (
        (altered, ErrorCode.FILE_ALTERED),
        (read_files(make_bundle(tmp_path / "other", scale=3.0)), ErrorCode.DIGEST_MISMATCH),
    ):
        actor = ScoringActor(replace(meant, files=files))
        refused = actor.open()
        assert isinstance(refused, MlctlError)
        assert refused.code is code
        actor.close()


def test_actor__pipeline_with_another_stage__is_rejected(tmp_path: Path) -> None:
    whole = VerifiedPipeline.of(pipeline(tmp_path))
    assert whole is not None
    x = tables.inputs(3)
    meant, unit = setup_of(whole, tmp_path, x)
    actor = ScoringActor(meant)
    assert isinstance(actor.process(unit), Marker)
    actor.close()
    found = tables.answers(tmp_path / "out")
    assert found["mlctl_digest"].to_pylist() == [whole.digest] * 3
    wanted = expected(expected(x), scale=3.0)
    np.testing.assert_allclose(tables.matrix(found["y"]), wanted, rtol=1e-4, atol=1e-5)
    other = make_bundle(tmp_path / "other", name="triple", scale=4.0)
    files = {**meant.files, **read_files(other)}
    actor = ScoringActor(replace(meant, files=files))
    refused = actor.open()
    actor.close()
    assert isinstance(refused, MlctlError)
    assert refused.code is ErrorCode.DIGEST_MISMATCH


def test_ray__no_cluster_at_the_address__fails_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        for address in (place, f"ray://{place}"):
            with pytest.raises(MlctlError, match="does not respond") as caught:
                cluster.check_reachable(address)
            assert caught.value.code is ErrorCode.CLUSTER_UNAVAILABLE
        taken.listen()
        cluster.check_reachable(f"ray://{place}")
    for address in (cluster.LOCAL, "auto"):
        cluster.check_reachable(address)
