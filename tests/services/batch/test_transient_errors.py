"""Sources that are away: waited for, and read on from where they were."""

from __future__ import annotations

import errno
import hashlib
import json
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import aiohttp
import numpy as np
import psycopg
import pytest

from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.batch.databases import sqlite
from mlctl.services.batch.job import BatchConfig, run_job
from mlctl.services.batch.local_executor import local_executor
from mlctl.services.batch.progress import BatchEvent, BatchPhase, RunControl
from mlctl.services.batch.sinks import open_sink
from mlctl.services.batch.sources import open_source
from mlctl.services.batch.transient_errors import is_transient, permanent_reason
from tests.support import tables
from tests.support.bundles import expected
from tests.support.postgres import PostgresServer

_ROWS = 8_000


class Files(ThreadingHTTPServer):
    """Serves one file at any path but /missing; `failures` requests beyond its beginning fail.

    They are refused, or answered with half of what was asked for if `cut` says so.
    """

    daemon_threads = True

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.failures = 0
        self.cut = False
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Files
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(200, self.server.content, body=False)

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        if wanted is None:
            return self._answer(200, self.server.content)
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        if int(first) and self.server.failures:
            self.server.failures -= 1
            if not self.server.cut:
                return self._answer(503, b"")
            self.close_connection = True
            return self._answer(206, self.server.content[int(first) : int(last) + 1], cut=True)
        return self._answer(206, self.server.content[int(first) : int(last) + 1])

    def _answer(self, status: int, content: bytes, *, body: bool = True, cut: bool = False) -> None:
        missing = self.path == "/missing.jsonl"
        self.send_response(404 if missing else status)
        self.send_header("Content-Length", "0" if missing else str(len(content)))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", hashlib.sha256(self.server.content).hexdigest())
        self.end_headers()
        if body and not missing:
            self.wfile.write(content[: len(content) // 2] if cut else content)

    def log_message(self, *_arguments: object) -> None: ...


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    return tables.inputs(_ROWS)


@pytest.fixture
def files(x: np.ndarray) -> Iterator[Files]:
    # Longer than what fsspec asks for at once.
    lines = (
        json.dumps({"id": row, "x": values, "more": "-" * 900})
        for row, values in enumerate(x.tolist())
    )
    server = Files("\n".join(lines).encode())
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def score(
    bundle: VerifiedBundle, location: str, out: Path, control: RunControl
) -> dict[int, np.ndarray]:
    sink, source = open_sink(str(out)), open_source(location, 1000)
    config = BatchConfig(keep=("id",), unit_rows=1000)
    report = run_job(bundle, source, sink, config, local_executor(2), control)
    found = tables.answers(out)
    assert found["id"].to_pylist() == list(range(report.totals.rows))
    return dict(enumerate(tables.matrix(found["y"])))


def test_transient_error__server_fails_for_a_moment__is_retried(
    bundle: VerifiedBundle, files: Files, x: np.ndarray, tmp_path: Path
) -> None:
    events: list[BatchEvent] = []

    def watch(event: BatchEvent) -> None:
        events.append(event)
        if event.phase is BatchPhase.STARTED:
            files.failures = 1

    location = f"{files.url}/rows.jsonl"
    found = score(bundle, location, tmp_path / "out", RunControl(watch=watch))
    np.testing.assert_allclose(np.stack(list(found.values())), expected(x), rtol=1e-4, atol=1e-5)
    (paused,) = [event for event in events if event.phase is BatchPhase.PAUSED]
    assert "rows.jsonl cannot be reached: HTTP status 503; trying again in 1 s" in paused.detail


def test_source__file_changed_while_unavailable__job_ends(
    bundle: VerifiedBundle, files: Files, tmp_path: Path
) -> None:
    files.cut = True

    def watch(event: BatchEvent) -> None:
        if event.phase is BatchPhase.STARTED:
            files.failures = 1
        if event.phase is BatchPhase.PAUSED:
            assert "ClientPayloadError" in event.detail
            files.content += b" "

    location = f"{files.url}/rows.jsonl"
    with pytest.raises(MlctlError, match="changed since the start") as caught:
        score(bundle, location, tmp_path / "out", RunControl(watch=watch))
    assert caught.value.code is ErrorCode.JOB_CHANGED


def test_transient_error__no_server_or_no_file__only_the_first_is_transient(files: Files) -> None:
    with pytest.raises(MlctlError, match="does not exist") as caught:
        open_source(f"{files.url}/missing.jsonl", 10)
    assert caught.value.code is ErrorCode.INVALID_INPUT
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        place = f"http://me:geheim@127.0.0.1:{unheard.getsockname()[1]}/rows.jsonl"
        with pytest.raises(MlctlError, match="cannot be reached") as caught:
            open_source(place, 10)
    assert caught.value.code is ErrorCode.SOURCE_UNAVAILABLE
    assert "geheim" not in str(caught.value)


@pytest.mark.slow
def test_transient_error__lost_postgresql_session__is_retried(
    bundle: VerifiedBundle, server: PostgresServer, x: np.ndarray, tmp_path: Path
) -> None:
    rows = [(row, values) for row, values in enumerate(x[:5000].tolist())]
    events: list[BatchEvent] = []
    with psycopg.connect(server.url, autocommit=True) as db:
        db.execute("DROP TABLE IF EXISTS away")
        db.execute("CREATE TABLE away (id INTEGER, x REAL[])")
        db.cursor().executemany("INSERT INTO away VALUES (%s, %s)", rows)

    def watch(event: BatchEvent) -> None:
        if event.phase is BatchPhase.STARTED:
            server.crash()
        if event.phase is BatchPhase.PAUSED:
            events.append(event)
            if len(events) == 1:
                server.start()

    location = f"{server.url}&table=away&key=id"
    found = score(bundle, location, tmp_path / "out", RunControl(watch=watch))
    np.testing.assert_allclose(
        np.stack(list(found.values())), expected(x[:5000]), rtol=1e-4, atol=1e-5
    )
    assert "cannot be reached" in events[0].detail
    assert "geheim" not in events[0].detail


def test_query_source__locked_sqlite_file__is_transient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_READ_SECONDS", 0.05)
    writer = sqlite3.connect(tmp_path / "in.db", isolation_level=None)
    writer.execute("CREATE TABLE a (id INTEGER)")
    writer.execute("BEGIN EXCLUSIVE")
    source = open_source(f"sqlite://{tmp_path}/in.db?table=a&key=id", 10)
    with pytest.raises(MlctlError, match="locked") as caught:
        source.identity()
    assert caught.value.code is ErrorCode.SOURCE_UNAVAILABLE
    writer.close()
    assert source.plan(["id"], None).rows == 0


@pytest.mark.slow
def test_query_source__duckdb_file_locked_by_another_process__is_transient(tmp_path: Path) -> None:
    place = tmp_path / "in.db"
    script = (
        "import duckdb, sys; db = duckdb.connect(sys.argv[1]); "
        "db.execute('CREATE TABLE a (id INTEGER)'); print('open', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(place)]
    source = open_source(f"duckdb://{place}?table=a&key=id", 10)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"open\n"
        with pytest.raises(MlctlError, match="lock") as caught:
            source.identity()
        writer.communicate()
    assert caught.value.code is ErrorCode.SOURCE_UNAVAILABLE
    assert source.plan(["id"], None).rows == 0


class AnsweredError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__()
        self.status = status


@pytest.mark.parametrize(
    ("error", "away"),
    [
        (ConnectionResetError(), True),
        (TimeoutError(), True),
        (OSError(errno.EIO, "the store failed"), True),
        (aiohttp.ServerDisconnectedError(), True),
        (aiohttp.ClientPayloadError(), True),
        (AnsweredError(503), True),
        (AnsweredError(429), True),
        (AnsweredError(403), False),
        (FileNotFoundError(), False),
        (PermissionError(), False),
        (OSError("Couldn't deserialize thrift"), False),
        (ValueError(), False),
    ],
)
def test_is_transient__errors_of_file_systems__are_classified(
    error: Exception, *, away: bool
) -> None:
    assert is_transient(error) is away
    told = FileNotFoundError("http://a")
    told.__cause__ = error
    assert is_transient(told) is away


@pytest.mark.parametrize(
    ("status", "said"),
    [(404, "does not exist"), (410, "does not exist"), (401, "denied"), (403, "denied")],
)
def test_permanent_reason__missing_or_forbidden__is_named(status: int, said: str) -> None:
    error = aiohttp.ClientResponseError(None, (), status=status)  # type: ignore[arg-type]
    told = FileNotFoundError("http://a")
    told.__cause__ = error
    assert said in (permanent_reason(error) or "")
    assert said in (permanent_reason(told) or "")
    assert permanent_reason(FileNotFoundError("a")) == "it does not exist"
    assert "denied" in (permanent_reason(PermissionError("a")) or "")
    assert permanent_reason(ValueError("of ours")) is None
