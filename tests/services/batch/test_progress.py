"""A run: its limit of bad rows, its patience with a sink or source, and errors that end it."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest

from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.batch.folder import FolderSink
from mlctl.services.batch.progress import BatchEvent, BatchPhase, ErrorLimit, RunControl
from mlctl.services.batch.storage import LocalStorage
from mlctl.services.batch.units import Marker, ScoredPiece, Unit
from tests.support import tables


class FailingSink(FolderSink):
    """Raises `errors` one after the other before commits succeed."""

    def __init__(self, folder: Path, errors: list[Exception]) -> None:
        super().__init__(LocalStorage(folder), "parquet")
        self._errors = errors

    def commit(self, unit: Unit, pieces: Iterable[ScoredPiece]) -> Marker:
        if self._errors:
            raise self._errors.pop()
        return super().commit(unit, pieces)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    tables.write_rows(tmp_path / "in.parquet", 2000)
    return tmp_path / "in.parquet"


AWAY = MlctlError(ErrorCode.SINK_UNAVAILABLE, "s3://b cannot be reached")
FULL = OSError(errno.ENOSPC, "no space")


@pytest.mark.parametrize("error", [AWAY, FULL])
def test_run__sink_away_for_a_moment__unit_is_repeated(
    bundle: VerifiedBundle, rows: Path, tmp_path: Path, error: Exception
) -> None:
    events: list[BatchEvent] = []
    sink = FailingSink(tmp_path / "out", [error])
    report = tables.score(bundle, rows, sink, events=events)
    assert report.totals.rows == 2000
    (paused,) = [event for event in events if event.phase is BatchPhase.PAUSED]
    assert "trying again in 1 s" in paused.detail
    assert tables.answers(tmp_path / "out")["id"].to_pylist() == list(range(2000))


@pytest.mark.parametrize(
    ("error", "code"), [(AWAY, ErrorCode.SINK_UNAVAILABLE), (FULL, ErrorCode.DISK_FULL)]
)
def test_run__sink_away_beyond_the_patience__ends_with_its_code(
    bundle: VerifiedBundle, rows: Path, tmp_path: Path, error: Exception, code: ErrorCode
) -> None:
    sink = FailingSink(tmp_path / "out", [error, error])
    with pytest.raises(MlctlError) as caught:
        tables.score(bundle, rows, sink, control=RunControl(patience=0.0))
    assert caught.value.code is code


def test_run__other_error_of_the_sink__ends_the_job_and_keeps_commits(
    bundle: VerifiedBundle, rows: Path, tmp_path: Path
) -> None:
    sink = FailingSink(tmp_path / "out", [PermissionError(errno.EACCES, "no")])
    with pytest.raises(PermissionError):
        tables.score(bundle, rows, sink, threads=1)
    report = tables.score(bundle, rows, FailingSink(tmp_path / "out", []))
    assert report.totals.rows == 2000


def test_run__stopped_while_it_waits__ends_at_once(
    bundle: VerifiedBundle, rows: Path, tmp_path: Path
) -> None:
    stop = threading.Event()

    def watch(event: BatchEvent) -> None:
        if event.phase is BatchPhase.PAUSED:
            stop.set()

    sink = FailingSink(tmp_path / "out", [AWAY] * 9)
    with pytest.raises(MlctlError):
        tables.score(bundle, rows, sink, control=RunControl(watch=watch, stop=stop))
    assert stop.is_set()


@pytest.mark.parametrize(
    ("text", "total", "seen", "max_bad"),
    [
        ("0", 100, 100, 0),
        ("25", None, 10, 25),
        ("1%", 10_000, 10, 100),
        ("0.5%", 1000, 0, 5),
        ("1%", None, 10, 10),
        ("1%", None, 50_000, 500),
        ("100%", 7, 7, 7),
    ],
)
def test_error_limit__number_or_share__bounds_the_bad_rows(
    text: str, total: int | None, seen: int, max_bad: int
) -> None:
    limit = ErrorLimit.parse(text)
    assert limit.max_bad(total, seen) == max_bad
    limit.check(max_bad, total, seen)
    with pytest.raises(MlctlError, match=f"more than --max-errors {text}") as caught:
        limit.check(max_bad + 1, total, seen)
    assert caught.value.code is ErrorCode.TOO_MANY_BAD_ROWS


@pytest.mark.parametrize("text", ["", "-1", "1.5", "101%", "many", "1 %"])
def test_error_limit__another_form__is_rejected(text: str) -> None:
    with pytest.raises(MlctlError, match="--max-errors"):
        ErrorLimit.parse(text)
