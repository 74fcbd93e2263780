"""--restart of a job whose answers go to a table: only the job's own rows are removed."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest

from mlctl.services.batch.databases.sink import DatabaseSink
from tests.services.batch.conftest import Place
from tests.support.table_jobs import JOB, commit, query, sink_at

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("key", ["", "id"])
def test_table__restart__keeps_the_rows_of_others(place: Place, key: str) -> None:
    location = place(create="yes", key=key)
    with closing(sink_at(location)) as sink:
        sink.begin(JOB)
        commit(sink, 0, 1)
        sink.finish({})
    query(location, "INSERT INTO $T (id) VALUES (1000), (1001)")
    query(location, "INSERT INTO $T (id, mlctl_digest) VALUES (1002, 'abc')")
    with closing(sink_at(location)) as sink:
        assert sink.begin(JOB, restart=True) == ({}, False)
        assert query_ids(sink) == [1000, 1001, 1002]
        commit(sink, 1)
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
    with closing(sink_at(location)) as sink:
        sink.begin(JOB)
        commit(sink, 0)
    forget_job(location)
    with closing(sink_at(location)) as sink:
        sink.begin(JOB)
        commit(sink, 1)
        sink.begin(replace(JOB, fingerprint={"input": "b"}), restart=True)
        assert query_ids(sink) == [*range(10)]


def forget_job(location: str) -> None:
    """Drop the ledger, so that the rows of the table are those of others."""
    for name in ("job", "units", "quarantine"):
        query(location, f"DROP TABLE $T_mlctl_{name}")


def test_table__restart_with_a_key__removes_the_rows_that_the_job_replaced(place: Place) -> None:
    location = place(create="yes", key="id")
    with closing(sink_at(location)) as sink:
        sink.begin(JOB)
        commit(sink, 0, 1)
    forget_job(location)
    with closing(sink_at(location)) as sink:
        sink.begin(JOB)
        commit(sink, 1)
        sink.begin(replace(JOB, fingerprint={"input": "b"}), restart=True)
        assert query_ids(sink) == [*range(10)]


def test_table__restart_of_a_job_whose_table_is_gone__begins_anew(place: Place) -> None:
    location = place(create="yes")
    with closing(sink_at(location)) as sink:
        sink.begin(JOB)
        commit(sink, 0)
    query(location, "DROP TABLE $T")
    with closing(sink_at(location)) as sink:
        assert sink.begin(JOB, restart=True) == ({}, False)
        commit(sink, 1)
        assert query_ids(sink) == [*range(10, 20)]
