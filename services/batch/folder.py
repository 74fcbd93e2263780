"""A folder of parts with its ledger: the commit protocol that all forms of files share.

A part is written under a temporary name, made durable, renamed, and made durable under its
name; only then do its units enter the ledger. What is not in the ledger is removed at start.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Self

from bundle.errors import ErrorCode, MlctlError
from bundle.files import fsync_directory, write_atomic
from services.batch.base import Job, Progress, Quarantined, UnitResult
from services.batch.ledger import Ledger
from services.batch.locking import lock_job
from services.batch.partitions import Parts

STATE = "_mlctl"
LEDGER = "ledger.db"
SUCCESS = "_SUCCESS"
SUMMARY = "summary.json"
QUARANTINE = "quarantine.jsonl"
_PREFIX = "part-"


class FolderSink:
    """A sink of files; `parts` says which ones hold the answers of some units.

    Their names must begin with the stem that it is given, in a folder of its choice.
    """

    def __init__(self, root: Path, parts: Parts, commit_rows: int = 100_000) -> None:
        self.root = root
        self.commit_rows = commit_rows
        self._parts = parts
        self._state = root / STATE
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

    def begin(self, job: Job, *, restart: bool = False) -> Progress:
        if restart:
            self._clear()
        elif not self._path().exists():
            self._refuse_foreign()
        progress = self._open().begin(job)
        self._partition_by = job.partition_by
        self._remove_orphans()
        if not progress.finished:
            (self.root / SUCCESS).unlink(missing_ok=True)
        return progress

    def commit(self, results: Sequence[UnitResult]) -> None:
        made = self._parts(results, f"{_PREFIX}{results[0].unit.id}", self._partition_by)
        for name, write in made.items():
            self._place(self.root / name, write)
        self._open().commit(results, made)

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

    def stored(self) -> tuple[Job, Progress]:
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
        """A partition's folder, whose own name is durable too."""
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

    def _our_files(self) -> Iterator[Path]:
        for folder, folders, names in os.walk(self.root):
            if STATE in folders:
                folders.remove(STATE)
            yield from (Path(folder, name) for name in names if name.startswith(_PREFIX))

    def _remove_orphans(self) -> None:
        """What a killed runner wrote, and did not enter into the ledger."""
        for path in self._state.glob("*.tmp"):
            path.unlink(missing_ok=True)
        known = self._open().parts()
        for path in self._our_files():
            if path.relative_to(self.root).as_posix() not in known:
                path.unlink(missing_ok=True)

    def _refuse_foreign(self) -> None:
        """A folder that has files, but no ledger, is somebody else's."""
        foreign = [path.name for path in self.root.iterdir() if path.name != STATE]
        if foreign:
            raise MlctlError(
                ErrorCode.JOB_CHANGED,
                f"{self.root} has files that no batch job wrote, such as {min(foreign)!r}",
                "Give an empty folder, or one that is not there yet, as --out.",
            )

    def _clear(self) -> None:
        """Remove the answers of the job before; files that no job wrote are refused."""
        if not self._path().exists():
            self._refuse_foreign()
            return
        if self._ledger is not None:
            self._ledger.__exit__()
            self._ledger = None
        for path in list(self._our_files()):
            path.unlink()
        (self.root / SUCCESS).unlink(missing_ok=True)
        # Last: as long as there is a ledger, a killed restart is known to have been a job's.
        for path in self._state.iterdir():
            if path.name != "lock":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        fsync_directory(self._state)
