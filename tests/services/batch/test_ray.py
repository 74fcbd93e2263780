"""Scoring on a real Ray, started on this machine for these tests."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from bundle.errors import ErrorCode, MlctlError
from bundle.manifest import MODEL_NAME
from bundle.verify import VerifiedBundle
from services.batch.answers import result_schema
from services.batch.base import Chunk, Sink, SinkRequest, Source, SourceRequest, Unit, UnitResult
from services.batch.engine import BatchEvent, BatchPhase
from services.batch.executors import choose_executor, cluster
from services.batch.executors.actor import Failure, ScoringActor, WorkerSetup, read_files
from services.batch.job import BatchConfig, BatchReport, RunControl, Scoring, make_recipe, run_job
from services.batch.limits import ErrorLimit
from services.batch.sinks.parquet import open_sink
from services.batch.sources import open_source
from services.batch.sources.parquet import ParquetSource
from services.runtime.pipeline_scorer import VerifiedPipeline
from services.runtime.scorable import Scorable
from tests.services.runtime.test_pipeline_scorer import pipeline
from tests.support import tables
from tests.support.bundles import expected, make_bundle
from tests.support.wait import wait_until

UNIT = 250
ROWS = 12 * UNIT
WANTED = BatchConfig(keep=("id",), unit_rows=UNIT)


@pytest.fixture(scope="module")
def started() -> Iterator[None]:
    """A Ray that all tests of this module use: starting one takes seconds."""
    with cluster.connected(cluster.LOCAL, 2):
        yield


def sink_at(out: Path) -> Sink:
    sink = open_sink(SinkRequest(str(out)))
    sink.commit_rows = UNIT
    return sink


def score(
    model: Scorable,
    source: Source,
    out: Path,
    control: RunControl | None = None,
    actors: int = 2,
) -> BatchReport:
    return run_job(
        model,
        tables.reference(model),
        source,
        sink_at(out),
        WANTED,
        choose_executor("ray", None, None, actors),
        control or RunControl(limit=ErrorLimit(count=10)),
    )


def rows_at(path: Path) -> Source:
    return open_source(SourceRequest(str(path), UNIT))


def lines(out: Path) -> list[str]:
    return (out / "_mlctl" / "quarantine.jsonl").read_text().splitlines()


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
        parquet.write_table(wide, place, row_group_size=900)
    else:
        csv.write_csv(wide, place)


def check_as_local(model: Scorable, place: Path, report: BatchReport, out: Path) -> None:
    """The answers and the bad rows in `out` are those of this process."""
    local = out.with_name("local")
    tables.score(model, place, sink_at(local), limit="10", wanted=WANTED)
    assert (report.totals.rows, report.totals.bad) == (ROWS - 2, 2)
    one, other = (tables.answers(at).drop_columns("mlctl_scored_at") for at in (out, local))
    assert one.equals(other)
    assert lines(out) == lines(local)


@pytest.mark.slow
@pytest.mark.usefixtures("started")
def test_rows_that_are_sent_are_answered_as_here(bundle: VerifiedBundle, tmp_path: Path) -> None:
    write_wide(tmp_path / "in.csv")
    report = score(bundle, rows_at(tmp_path / "in.csv"), tmp_path / "ray", actors=1)
    check_as_local(bundle, tmp_path / "in.csv", report, tmp_path / "ray")


@pytest.mark.slow
@pytest.mark.usefixtures("started")
def test_a_pipeline_is_scored_as_here(tmp_path: Path) -> None:
    whole = VerifiedPipeline.of(pipeline(tmp_path))
    assert whole is not None
    write_wide(tmp_path / "in.parquet")
    report = score(whole, rows_at(tmp_path / "in.parquet"), tmp_path / "ray", actors=1)
    check_as_local(whole, tmp_path / "in.parquet", report, tmp_path / "ray")
    assert report.digest == whole.digest


@pytest.mark.slow
@pytest.mark.usefixtures("started")
def test_killing_actors_that_read_themselves_loses_and_doubles_nothing(
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
def test_a_stopped_job_goes_on_where_it_was(bundle: VerifiedBundle, tmp_path: Path) -> None:
    tables.write_rows(tmp_path / "in.parquet", 16 * UNIT)
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
    tables.score(bundle, tmp_path / "in.parquet", sink_at(tmp_path / "out"), wanted=WANTED)
    assert tables.answers(tmp_path / "out")["id"].to_pylist() == list(range(16 * UNIT))


class Deadly:
    """A number that ends whoever is sent it; not the sender."""

    def __reduce__(self) -> tuple[object, tuple[int, int]]:
        return _die_elsewhere, (os.getpid(), 0)

    def __int__(self) -> int:
        return 0


def _die_elsewhere(home: int, number: int) -> int:
    if os.getpid() != home:
        os._exit(137)
    return number


class DeadlySource:
    """Three units; whoever scores the second one dies, each time."""

    name = "deadly"

    def __init__(self) -> None:
        self._table = tables.table(tables.inputs(UNIT))
        self.schema = self._table.schema

    def identity(self) -> Mapping[str, str]:
        return {"rows": "3"}

    def total_rows(self) -> int | None:
        return 3 * UNIT

    def scan(self, columns: Sequence[str], done: Container[str]) -> Iterator[Chunk]:
        for index in range(3):
            unit = Unit(f"{index}", "deadly", 0, UNIT)
            if unit.id not in done:
                numbers = [Deadly()] if index == 1 else None
                yield Chunk(unit, self._table.select(columns), (), numbers)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.usefixtures("started")
def test_a_unit_that_ends_its_actor_again_and_again_ends_the_job(
    bundle: VerifiedBundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "_RETRIES", 1)
    with pytest.raises(MlctlError, match="lost a unit 2 times") as caught:
        score(bundle, DeadlySource(), tmp_path / "out", actors=1)
    assert caught.value.code is ErrorCode.CLUSTER_UNAVAILABLE
    assert not (tmp_path / "out" / "_SUCCESS").exists()
    # No row was blamed for it: where nobody dies, the same job goes on to its end.
    report = run_job(
        bundle,
        str(bundle.root),
        DeadlySource(),
        sink_at(tmp_path / "out"),
        WANTED,
        choose_executor("local", 1, None, None),
        RunControl(),
    )
    assert (report.totals.rows, report.totals.bad) == (3 * UNIT, 0)


class OnlyHere(ParquetSource):
    """Files that no other process can read."""

    def __init__(self, request: SourceRequest) -> None:
        super().__init__(request)
        self.home = os.getpid()

    def read(self, unit: Unit, columns: Sequence[str]) -> Chunk:
        if os.getpid() != self.home:
            raise FileNotFoundError(unit.origin)
        return super().read(unit, columns)


@pytest.mark.slow
@pytest.mark.usefixtures("started")
def test_what_actors_cannot_read_is_sent_and_too_many_bad_rows_are_told_from_there(
    bundle: VerifiedBundle, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = tables.table(tables.inputs(UNIT)).to_pydict()
    rows["x"] = [[1.0, 2.0] if index % 2 else values for index, values in enumerate(rows["x"])]
    kinds = pa.schema([("id", pa.int64()), ("x", pa.list_(pa.float32()))])
    parquet.write_table(pa.table(rows, schema=kinds), tmp_path / "in.parquet")
    source: Any = OnlyHere(SourceRequest(str(tmp_path / "in.parquet"), UNIT))
    with (
        caplog.at_level("WARNING", "mlctl.batch"),
        pytest.raises(MlctlError, match="max-errors") as caught,
    ):
        score(bundle, source, tmp_path / "out", actors=1)
    assert caught.value.code is ErrorCode.TOO_MANY_BAD_ROWS
    (told,) = caplog.records
    assert "cannot read in.parquet: this process reads it from now on" in told.getMessage()


def errand(model: Scorable) -> WorkerSetup:
    schema = tables.table(tables.inputs(1)).schema
    recipe = make_recipe(model, schema, WANTED)
    answers = result_schema(model.signature, schema, recipe.keep)
    return WorkerSetup(Scoring(model, recipe, answers), read_files(model))


def test_an_actor_opens_only_the_bundle_that_was_meant(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "bundle")
    meant = errand(bundle)
    actor = ScoringActor(lambda given: given)
    assert actor.open([meant]) is None
    chunk = Chunk(Unit("0", "here", 0, 3), tables.table(tables.inputs(3)))
    answered = actor.score([meant], chunk)
    assert isinstance(answered, UnitResult)
    assert answered.table.num_rows == 3
    actor.close()
    altered = dict(meant.files)
    name = f"{bundle.name}/{MODEL_NAME}"
    altered[name] = altered[name].copy()
    altered[name][-1] ^= 1
    for files, code in (
        (altered, ErrorCode.FILE_ALTERED),
        (read_files(make_bundle(tmp_path / "other", scale=3.0)), ErrorCode.DIGEST_MISMATCH),
    ):
        refused = actor.open([replace(meant, files=files)])
        assert isinstance(refused, Failure)
        assert refused.code is code
        actor.close()


def test_an_actor_opens_all_stages_of_a_pipeline_or_none(tmp_path: Path) -> None:
    whole = VerifiedPipeline.of(pipeline(tmp_path))
    assert whole is not None
    meant = errand(whole)
    actor = ScoringActor(lambda given: given)
    x = tables.inputs(3)
    answered = actor.score([meant], Chunk(Unit("0", "here", 0, 3), tables.table(x)))
    actor.close()
    assert isinstance(answered, UnitResult)
    assert answered.table["mlctl_digest"].to_pylist() == [whole.digest] * 3
    wanted = expected(expected(x), scale=3.0)
    np.testing.assert_allclose(tables.matrix(answered.table["y"]), wanted, rtol=1e-4, atol=1e-5)
    other = make_bundle(tmp_path / "other", name="triple", scale=4.0)
    files = {**meant.files, **read_files(other)}
    refused = actor.open([replace(meant, files=files)])
    actor.close()
    assert isinstance(refused, Failure)
    assert refused.code is ErrorCode.DIGEST_MISMATCH


def test_a_cluster_that_nobody_is_at_is_told_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        for address in (place, f"ray://{place}"):
            with pytest.raises(MlctlError, match="does not answer") as caught:
                cluster.check_reachable(address)
            assert caught.value.code is ErrorCode.CLUSTER_UNAVAILABLE
        taken.listen()
        cluster.check_reachable(f"ray://{place}")
    for address in (cluster.LOCAL, "auto"):
        cluster.check_reachable(address)


def test_options_of_the_other_executor_are_refused() -> None:
    with pytest.raises(MlctlError, match="need --executor ray"):
        choose_executor("local", None, None, 2)
    with pytest.raises(MlctlError, match="one thread"):
        choose_executor("ray", 2, None, None)
