"""Answers as part files in a folder or a bucket, each unit its own commit.

`part-<unit>-<job>.parquet` and `_mlctl/quarantine/part-<unit>-<job>.parquet` are written first, the
marker `_mlctl/<unit>-<job>.json` last. Names and contents are functions of the unit and the job's
fingerprint, so runs that write the same unit write the same files. The job's id is in each name: a
job replaces and deletes only files that it named itself.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.batch.files import HIVE_NULL
from mlctl.services.batch.formats.parts import PART_FORMATS, PartWriter
from mlctl.services.batch.storage import STATE, BucketStorage, Storage
from mlctl.services.batch.units import Job, Marker, ScoredPiece, Unit, job_id, require_same_job

SUCCESS = "_SUCCESS"
QUARANTINE = f"{STATE}/quarantine"
_JOB, _SUMMARY = f"{STATE}/job.json", f"{STATE}/summary.json"
# A row group of a part: whichever limit comes first.
_GROUP_ROWS = 100_000
_GROUP_BYTES = 32 << 20


class FolderSink:
    """Part files in `storage`, of one of PART_FORMATS."""

    forbids_nul = False

    def __init__(self, storage: Storage, form: str) -> None:
        self.waits = isinstance(storage, BucketStorage)
        self._storage = storage
        self._form = form
        self._job: Job | None = None

    def begin(self, job: Job, *, restart: bool = False) -> tuple[dict[str, Marker], bool]:
        self._job = job
        # In this order: a part that was there before its job's record would be another program's.
        names = self._storage.names()
        known = read_job(self._storage)
        if known is None and set(names) - {STATE}:
            foreign = min(set(names) - {STATE})
            raise MlctlError(
                ErrorCode.JOB_CHANGED,
                f"{self._storage.shown} has files of no batch job, such as {foreign!r}",
                "Give an empty folder, or one that does not exist yet, as --out.",
            )
        if known is not None and restart:
            self._clear(known)
            names = []
        elif known is not None:
            require_same_job(known["fingerprint"], job.fingerprint)
        if known is None or restart:
            record = {"fingerprint": dict(job.fingerprint), "format": self._form}
            record |= {"partition_by": list(job.partition_by), **job.facts}
            self._write(_JOB, json.dumps(record, indent=2))
        return self.markers(), SUCCESS in names

    def find(self, unit: Unit) -> Marker | None:
        name = self._marker(unit)
        return _parsed(self._storage.read([name]).get(name))

    def markers(self) -> dict[str, Marker]:
        """Return the markers of the job by unit."""
        pattern = re.compile(rf"\d+-{self._begun.id}\.json")
        names = [f"{STATE}/{n}" for n in self._storage.names(STATE) if pattern.fullmatch(n)]
        found = map(_parsed, self._storage.read(names).values())
        return {marker.unit: marker for marker in found if marker is not None}

    def commit(self, unit: Unit, pieces: Iterable[ScoredPiece]) -> Marker:
        job, stem = self._begun, self._stem(unit)
        marker = Marker(unit.id, origin=unit.origin)
        try:
            with contextlib.ExitStack() as stack:
                answers = _Parts(self._storage, stack, f"part-{stem}", self._form, job.partition_by)
                bad = _Parts(self._storage, stack, f"{QUARANTINE}/part-{stem}", "parquet")
                for piece in pieces:
                    answers.add(piece.answers)
                    if piece.quarantine is not None:
                        bad.add(piece.quarantine)
                    marker += piece
                answers.flush()
                bad.flush()
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            marker = replace(marker, files=(*answers.names, *bad.names), scored_at=now)
            self._write(self._marker(unit), marker.as_json())
        except FileNotFoundError:
            # Another run completed the job and removed our files as those of a killed run.
            if (other := self.find(unit)) is None:
                raise
            return other
        return marker

    def finish(self, summary: Mapping[str, object]) -> None:
        record = read_job(self._storage)
        require_same_job({} if record is None else record["fingerprint"], self._begun.fingerprint)
        # Not at each commit: a run killed between a marker and the cleaning would leave them.
        self._storage.clean(f"-{self._begun.id}.")
        self._write(_SUMMARY, json.dumps(summary, indent=2) + "\n")
        self._write(SUCCESS, "")

    def close(self) -> None:
        """Nothing is open."""

    @property
    def _begun(self) -> Job:
        assert self._job is not None, "the job was not begun"
        return self._job

    def _stem(self, unit: Unit) -> str:
        return f"{unit.id}-{self._begun.id}"

    def _marker(self, unit: Unit) -> str:
        return f"{STATE}/{self._stem(unit)}.json"

    def _write(self, name: str, text: str) -> None:
        with self._storage.create(name) as file:
            file.write(text.encode())

    def _clear(self, record: Mapping[str, Any]) -> None:
        """Delete what the recorded job wrote; markers first, so that none is without its files."""
        job = job_id(record["fingerprint"])
        folders = "".join(f"{re.escape(quote(n, safe=''))}=[^/]*/" for n in record["partition_by"])
        marker = re.compile(rf"{STATE}/\d+-{job}\.json")
        part = re.compile(rf"({folders}|{QUARANTINE}/)part-\d+-{job}\.\w+")
        names = self._storage.find()
        markers = [name for name in names if marker.fullmatch(name)]
        self._storage.delete([SUCCESS, _SUMMARY])
        self._storage.delete(markers)
        self._storage.delete([name for name in names if part.fullmatch(name)])


def read_job(storage: Storage) -> dict[str, Any] | None:
    """Return the record of the job that writes to `storage`; None if there is none."""
    content = storage.read([_JOB]).get(_JOB)
    found: dict[str, Any] | None = None if content is None else json.loads(content)
    return found


def _parsed(content: bytes | None) -> Marker | None:
    """Return the marker; None if it is missing or was cut off."""
    if content is None:
        return None
    with contextlib.suppress(ValueError, TypeError, KeyError):
        return Marker.from_json(content.decode())
    return None


class _Parts:
    """The part files of a unit: one, or one for each partition that has rows.

    The end of `stack` closes them.
    """

    def __init__(
        self,
        storage: Storage,
        stack: contextlib.ExitStack,
        name: str,
        form: str,
        partition_by: tuple[str, ...] = (),
    ) -> None:
        self._storage = storage
        self._stack = stack
        self._name = f"{name}.{form}"
        self._format = PART_FORMATS[form]
        self._by = partition_by
        self._pending: dict[str, list[pa.Table]] = {}
        self._writers: dict[str, PartWriter] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the files, in the order of their first rows."""
        return tuple(self._pending)

    def add(self, table: pa.Table) -> None:
        """Append rows, and write those files that have a full row group."""
        for folder, rows in partitioned(table, self._by) if table.num_rows else ():
            name = f"{folder}{self._name}"
            tables = self._pending.setdefault(name, [])
            tables.append(rows)
            count = sum(each.num_rows for each in tables)
            if count >= _GROUP_ROWS or sum(each.nbytes for each in tables) >= _GROUP_BYTES:
                self._write(name)

    def flush(self) -> None:
        """Write the rest of all files."""
        for name in self._pending:
            self._write(name)

    def _write(self, name: str) -> None:
        tables = self._pending[name]
        if not tables:
            return
        if name not in self._writers:
            file = self._stack.enter_context(self._storage.create(name))
            self._writers[name] = self._format(file, tables[0].schema)
            self._stack.callback(self._writers[name].close)
        self._writers[name].write(pa.concat_tables(tables).unify_dictionaries())
        tables.clear()


def partitioned(table: pa.Table, by: tuple[str, ...]) -> Iterator[tuple[str, pa.Table]]:
    """Yield each Hive folder with a "/" at its end, and its rows without the columns `by`."""
    if not by:
        yield "", table
        return
    number = "mlctl_row"
    keys = table.select(by).append_column(number, pa.array(range(table.num_rows)))
    groups = keys.group_by(list(by), use_threads=False).aggregate([(number, "list")])
    rest = table.drop_columns(list(by))
    for group in groups.to_pylist():
        folders = (f"{quote(name, safe='')}={_folder_value(group[name])}/" for name in by)
        yield "".join(folders), rest.take(pa.array(group[f"{number}_list"], pa.int64()))


def _folder_value(value: object) -> str:
    return HIVE_NULL if value is None else quote(str(value), safe=" ")
