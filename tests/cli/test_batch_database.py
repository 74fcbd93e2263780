"""`mlctl batch` from packed CSV into a table of PostgreSQL, as a user runs it."""

from __future__ import annotations

import gzip
from pathlib import Path

import psycopg
import pytest

from tests.support import tables
from tests.support.bundles import make_bundle
from tests.support.command_line import Mlctl
from tests.support.postgres import PostgresServer

pytestmark = pytest.mark.slow


def test_batch__compressed_csv_to_a_table_to_another__keeps_each_row(tmp_path: Path) -> None:
    make_bundle(tmp_path / "tiny")
    rows = tables.inputs(700).tolist()
    lines = ["id,x_0,x_1,x_2,x_3", *(f"{i},{','.join(map(str, x))}" for i, x in enumerate(rows))]
    lines[8] = "7,1,2,3"
    (tmp_path / "in.csv.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    mlctl, server = Mlctl(tmp_path), PostgresServer()
    try:
        out = f"{server.url}&table=scores&key=id"
        first = ("batch", "run", "tiny", "--in", "in.csv.gz", "--keep", "id,x_0,x_1,x_2,x_3")
        refused = mlctl.run(*first, "--out", out)
        assert refused.returncode == 2
        assert "table scores of postgresql://mlctl@/postgres" in refused.stderr
        done = mlctl.run(*first, "--out", out, "--option", "create=yes", "--json")
        assert done.returncode == 0, done.stderr
        second = ("batch", "run", "tiny", "--in", out, "--keep", "id", "--json")
        target = "sqlite://out.db?table=again&create=yes"
        again = mlctl.run(*second, "--out", target, "--map", "x=x_0,x_1,x_2,x_3")
        assert again.returncode == 0, again.stderr
        told = "".join(r.stdout + r.stderr for r in (refused, done, again))
        assert "geheim" not in told
        with psycopg.connect(server.url) as connection:
            ids = connection.execute("SELECT id FROM scores ORDER BY id").fetchall()
            ledger = connection.execute("SELECT * FROM scores_mlctl_job").fetchall()
            bad = connection.execute("SELECT row FROM scores_mlctl_quarantine").fetchall()
    finally:
        server.close()
    assert ids == [(row,) for row in range(700) if row != 7]
    assert bad == [(7,)]
    assert "geheim" not in str(ledger)
    assert b"geheim" not in (tmp_path / "out.db").read_bytes()
