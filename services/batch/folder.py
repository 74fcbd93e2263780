"""A folder of part files with its ledger: the commit protocol of all file formats.

The ledger first notes the names of a commit's parts. Each part is written under a temporary name,
made durable, renamed, and made durable under its name; only then do its units enter the ledger.

A job removes only files whose names its ledger noted, and each name has the job's random id in it:
files of other programs, and of other jobs in a subfolder, are never touched.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

from bundle.errors import ErrorCode, MlctlError
from bundle.files import fsync_directory, write_atomic
from services.batch.base import Job, JobProgress, Quarantined, UnitResult
from services.batch.ledger import Ledger
from services.batch.locks import lock_job
from services.batch.partitions import partitioned

if TYPE_CHECKING:
    import pyarrow as pa

STATE = "_mlctl"
LEDGER = "ledger.db"
SUCCESS = "_SUCCESS"
SUMMARY = "summary.json"
QUARANTINE = "quarantine.jsonl"
# Of row groups that readers of Parquet like; a part is one of them.
COMMIT_ROWS = 100_000


class FolderSink:
    """A sink of files with the ending `suffix`, each of which `write` fills with a table."""

    def __init__(
        self, location: str, suffix: str, write: Callable[[pa.Table, IO[bytes]], None]
    ) -> None:
        self.root = Path(location.removeprefix("file://"))
        self.commit_rows = COMMIT_ROWS
        self._suffix = suffix
        self._write = write
        self._state = self.root / STATE
        self._lock: int | None = None
        self._ledger: Ledger | None = None
        self._partition_by: tuple[str, ...] = ()

    def __enter__(self) -> Self:
        try:
            self._state.mkdir(parents=True, exist_ok=True)
            self._lock = lock_job(self._state / "lock", str(self.root))
        except (FileExistsError, NotADirectoryError) as error:
            raise MlctlError(ErrorCode.INVALID_INPUT, f"{self.root} is not a folder") from error
        return self

    def __exit__(self, *_exc_info: object) -> None:
        if self._ledger is not None:
            self._ledger.__exit__()
        if self._lock is not None:
            os.close(self._lock)

    def begin(self, job: Job, *, restart: bool = False) -> JobProgress:
        if not self._path().exists():
            self._refuse_foreign()
        elif restart:
            self._clear()
        progress = self._open().begin(job)
        self._partition_by = job.partition_by
        if not progress.finished:
            (self.root / SUCCESS).unlink(missing_ok=True)
        self._remove_orphans()
        return progress

    def commit(self, results: Sequence[UnitResult]) -> None:
        import pyarrow as pa

        ledger = self._open()
        name = f"part-{results[0].unit.id}-{ledger.job_id()}{self._suffix}"
        table = pa.concat_tables([result.table for result in results])
        parts = {
            f"{folder}{name}": part
            for folder, part in partitioned(table, self._partition_by)
            if part.num_rows
        }
        ledger.note(parts)
        for path, part in parts.items():
            self._place(self.root / path, partial(self._write, part))
        ledger.commit(results, parts)

    def finish(self, summary: Mapping[str, object]) -> None:
        self._write_quarantine()
        write_atomic(self._state / SUMMARY, json.dumps(summary, indent=2).encode() + b"\n")
        write_atomic(self.root / SUCCESS, b"")
        self._open().finish()

    def require_job(self) -> None:
        if not self.root.is_dir():
            raise MlctlError(ErrorCode.NOT_FOUND, f"there is no folder {self.root}")
        if not self._path().exists():
            raise self._no_job()

    def stored(self) -> tuple[Job, JobProgress]:
        job = self._open().stored() if self._path().exists() else None
        if job is None:
            raise self._no_job()
        self._remove_orphans()
        self._partition_by = job.partition_by
        return job, self._open().progress()

    def quarantined(self) -> Iterator[Quarantined]:
        return self._open().quarantined()

    def _no_job(self) -> MlctlError:
        return MlctlError(ErrorCode.NOT_FOUND, f"{self.root} holds no batch job's answers")

    def _open(self) -> Ledger:
        if self._ledger is None:
            self._ledger = Ledger(self._path())
        return self._ledger

    def _path(self) -> Path:
        return self._state / LEDGER

    def _place(self, path: Path, write: Callable[[IO[bytes]], None]) -> None:
        self._make_folder(path.parent)
        descriptor, temporary = tempfile.mkstemp(dir=self._state, suffix=".tmp")
        try:
            with os.fdopen(descriptor, "wb") as file:
                write(file)
                file.flush()
                os.fchmod(file.fileno(), 0o644)
                os.fsync(file.fileno())
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        fsync_directory(path.parent)

    def _make_folder(self, folder: Path) -> None:
        """Create a partition's folder and make its name durable."""
        if not folder.exists():
            self._make_folder(folder.parent)
            folder.mkdir(exist_ok=True)
            fsync_directory(folder.parent)

    def _write_quarantine(self) -> None:
        path = self._state / QUARANTINE
        rows = list(self.quarantined())
        if not rows:
            path.unlink(missing_ok=True)
            return

        def write(file: IO[bytes]) -> None:
            for each in rows:
                document = {
                    "unit": each.unit,
                    "origin": each.origin,
                    "row": each.bad.row,
                    "reason": each.bad.reason,
                    "values": each.bad.values,
                }
                file.write(json.dumps(document, ensure_ascii=False).encode() + b"\n")

        self._place(path, write)

    def _remove_orphans(self) -> None:
        """Remove the parts of commits that were cut off, and unfinished temporary files."""
        for path in self._state.glob("*.tmp"):
            path.unlink(missing_ok=True)
        ledger = self._open()
        orphans = ledger.orphans()
        paths = [self.root / name for name in orphans]
        for path in paths:
            path.unlink(missing_ok=True)
        for folder in {path.parent for path in paths if path.parent.is_dir()}:
            fsync_directory(folder)
        ledger.forget(orphans)

    def _refuse_foreign(self) -> None:
        """Reject a folder that has files but no ledger."""
        foreign = [path.name for path in self.root.iterdir() if path.name != STATE]
        if foreign:
            raise MlctlError(
                ErrorCode.JOB_CHANGED,
                f"{self.root} has files that no batch job wrote, such as {min(foreign)!r}",
                "Give an empty folder, or one that is not there yet, as --out.",
            )

    def _clear(self) -> None:
        """Remove the previous job from the ledger; its parts become orphans."""
        self._open().clear()
        for name in (SUMMARY, QUARANTINE):
            (self._state / name).unlink(missing_ok=True)
