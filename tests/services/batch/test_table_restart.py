"""--restart of a job whose answers go to a table: only the job's own rows are removed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bundle.errors import MlctlError
from services.batch.base import BatchTotals
from services.batch.databases.sink import DatabaseSink
from tests.services.batch.conftest import Place
from tests.support.table_jobs import JOB, query, result, sink_at

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("key", ["", "id"])
def test_table__restart__keeps_the_rows_of_others(place: Place, key: str) -> None:
    location = place(create="yes", key=key)
    with sink_at(location) as sink:
        sink.begin(JOB)
        sink.commit([result(0), result(1)])
        sink.finish({})
    query(location, "INSERT INTO $T (id) VALUES (1000), (1001)")
    query(location, "INSERT INTO $T (id, mlctl_digest) VALUES (1002, 'abc')")
    with sink_at(location) as sink:
        assert sink.begin(JOB, restart=True).totals == BatchTotals()
        assert query_ids(sink) == [1000, 1001, 1002]
        sink.commit([result(1)])
    assert sorted(query(location, "SELECT id FROM $T")) == [
        *((row,) for row in range(10, 20)), (1000,), (1001,), (1002,)
    ]  # fmt: skip


def query_ids(sink: DatabaseSink) -> list[int]:
    with sink._db.transaction():
        return sorted(row[0] for row in sink._db.run(f"SELECT id FROM {sink._table}"))


def test_table__restart_of_a_job_that_began_with_rows_in_the_table__keeps_those(
    place: Place,
) -> None:
    location = place(create="yes")
    with sink_at(location) as sink:
        sink.begin(JOB)
        sink.commit([result(0)])
    forget_job(location)
    with sink_at(location) as sink:
        sink.begin(JOB)
        sink.commit([result(1)])
        sink.begin(replace(JOB, fingerprint={"input": "b"}), restart=True)
        assert query_ids(sink) == [*range(10)]


def forget_job(location: str) -> None:
    """Drop the ledger, so that the rows of the table are those of others."""
    for name in ("facts", "units", "quarantine", "written"):
        query(location, f"DROP TABLE $T_mlctl_{name}")


def test_table__restart_where_the_job_may_have_replaced_rows__is_refused(place: Place) -> None:
    location = place(create="yes", key="id")
    with sink_at(location) as sink:
        sink.begin(JOB)
        sink.commit([result(0)])
    forget_job(location)
    with sink_at(location) as sink:
        sink.begin(JOB)
        sink.commit([result(1)])
        with pytest.raises(MlctlError, match="had rows before the job") as caught:
            sink.begin(replace(JOB, fingerprint={"input": "b"}), restart=True)
        assert caught.value.hint is not None
        assert "_mlctl_written" in caught.value.hint
        assert query_ids(sink) == [*range(20)]


def test_table__restart_after_the_rows_were_changed__is_refused(place: Place) -> None:
    location = place(create="yes")
    with sink_at(location) as sink:
        sink.begin(JOB)
        sink.commit([result(0)])
    query(location, "UPDATE $T SET mlctl_digest = 'other' WHERE id = 3")
    with sink_at(location) as sink:
        with pytest.raises(MlctlError, match="has 9 rows of the job, which wrote 10"):
            sink.begin(JOB, restart=True)
        assert query_ids(sink) == [*range(10)]
        assert len(sink.begin(JOB).done) == 1
