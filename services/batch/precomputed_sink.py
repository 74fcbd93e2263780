"""Precomputed answers as the output of a batch job: one generation, live once it is complete.

The store records which units are committed, beside their rows: rows that it loses are written
again, and the job can go on from any machine. A lease on its generation shows other machines that
the job runs. A job resumes or drops only generations of its own machine or without a lease.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl
from uuid import uuid4

import numpy as np

from bundle.clock import Clock, SystemClock
from bundle.errors import ErrorCode, MlctlError
from bundle.tensors import DYNAMIC, Datatype, TensorSpec
from services.batch.storage import lock_job
from services.batch.units import (
    DIGEST_COLUMN,
    REASON_COLUMN,
    ROW_COLUMN,
    Job,
    Marker,
    ScoredPiece,
    Unit,
)
from services.precomputed.base import (
    LEASE_SECONDS,
    Generation,
    GenerationCommit,
    JobRecord,
    PrecomputedRow,
    PrecomputedStore,
    StoreError,
    check_name,
)
from services.precomputed.lease import Lease
from services.precomputed.row_codec import RowCodec
from services.precomputed.settings import read_store_location
from services.precomputed.store_urls import lock_path, open_store
from services.protocol.keys import key_text
from services.runtime.tabular.values import as_json

if TYPE_CHECKING:
    import pyarrow as pa

_KEY, _DIGEST = "precomputed key", "model digest"
_ID_CHARS = 32
_DATATYPES: Mapping[np.dtype, Datatype] = MappingProxyType(
    {np.dtype(each.numpy_name): each for each in Datatype if each is not Datatype.BYTES}
)


def open_precomputed(location: str, options: Mapping[str, str]) -> PrecomputedSink:
    """Open the sink of `precomputed://NAME`, in the store that MLCTL_PRECOMPUTED_STORE names.

    Options, also as a query of the location: `key` is the column with the entity keys,
    `flip=no` leaves it to `mlctl precomputed flip` to make the generation live.
    """
    name, _, query = location.partition("://")[2].partition("?")
    name = check_name(name.rstrip("/"))
    parameters = {**dict(parse_qsl(query)), **options}
    flip = parameters.get("flip", "yes")
    if flip not in {"yes", "no"}:
        raise MlctlError(ErrorCode.INVALID_INPUT, f"--option flip={flip}: write yes or no")
    where = read_store_location()
    store, lock = open_store(name, where), lock_path(name, where)
    return PrecomputedSink(name, store, lock, parameters.get("key"), flip=flip == "yes")


class PrecomputedSink:
    """Writes one generation of `store`.

    Jobs of this machine with the same name exclude each other with the file `lock`. It contains
    the machine's id, which is the owner of their generations.
    """

    distributed = False
    forbids_nul = False

    def __init__(
        self,
        name: str,
        store: PrecomputedStore,
        lock: Path,
        key: str | None = None,
        *,
        flip: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self._name = name
        self._store = store
        self._lock_path = lock
        self._key = key
        self._flip = flip
        self._clock = clock or SystemClock()
        self._lock: int | None = None
        self._owner = ""
        self._lease: Lease | None = None
        self._job: Job | None = None
        self._generation = 0
        self._done: dict[str, Marker] = {}
        self._turn = threading.Lock()

    def begin(self, job: Job, *, restart: bool = False) -> tuple[dict[str, Marker], bool]:
        """Resume the generation of the same job, or create one beside those of other jobs."""
        if job.partition_by:
            raise MlctlError(
                ErrorCode.INVALID_INPUT, "--partition-by: precomputed:// has no folders"
            )
        job = replace(job, fingerprint={**job.fingerprint, _KEY: self._key_column(job)})
        output_specs(job)  # rejects a model before anything is scored
        self._lock_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = lock_job(self._lock_path, f"precomputed://{self._name}")
        self._owner = _machine_id(self._lock)
        with _translated():
            found = None if restart else self._find(job)
            if found is None:
                digest = job.fingerprint[_DIGEST]
                self._drop_unused([g for g in self._store.generations() if not g.sealed], digest)
                at = self._clock.wall()
                number = self._store.create(digest, at, self._owner, _as_text(job))
                self._resume(job, number, JobRecord("", {}, 0, intact=True))
                return {}, False
            generation, record = found
            self._claim(generation.number, _as_text(job))
            self._resume(job, generation.number, record)
            # One that is complete and not live yet is made live by a run that may do that.
            live = generation.flipped_at is not None or not self._flip
            return dict(self._done), generation.sealed and live

    def find(self, unit: Unit) -> Marker | None:
        return self._done.get(unit.id)

    def markers(self) -> dict[str, Marker]:
        return dict(self._done)

    def commit(self, unit: Unit, pieces: Iterable[ScoredPiece]) -> Marker:
        job, found = self._begun(), list(pieces)
        at = self._clock.wall()
        rows = [row for piece in found for row in _rows(piece.answers, job, at)]
        bad = [row for piece in found if piece.quarantine for row in piece.quarantine.to_pylist()]
        skipped = sum(piece.skipped for piece in found)
        reason = str(bad[-1][REASON_COLUMN]) if bad else ""
        marker = Marker(unit.id, len(rows), len(bad), skipped, (), unit.origin, reason)
        commit = GenerationCommit(
            rows,
            {unit.id: marker.as_json()},
            {
                f"{unit.id}/{row[ROW_COLUMN]}": json.dumps(as_json(row), ensure_ascii=False)
                for row in bad
            },
        )
        with self._turn, _translated():
            self._store.commit(self._generation, self._owner, commit, len(self._done))
            self._done[unit.id] = marker
        return marker

    def finish(self, summary: Mapping[str, object]) -> None:  # noqa: ARG002 - the engine's
        """Complete the generation and, unless flip=no, make it live.

        Drops older complete generations of the same model that never became live.
        """
        with _translated():
            self._store.seal(self._generation, self._owner, len(self._done))
            if self._flip:
                self._store.flip(self._generation, self._clock.wall())
            older = [g for g in self._store.generations() if g.number < self._generation]
            self._drop_unused([g for g in older if g.sealed], self._begun().fingerprint[_DIGEST])

    def close(self) -> None:
        if self._lease is not None:
            self._lease.close()
        self._store.close()
        if self._lock is not None:
            os.close(self._lock)

    def _find(self, job: Job) -> tuple[Generation, JobRecord] | None:
        """Return the generation of the same job: one in progress, or the newest complete one."""
        digest = job.fingerprint[_DIGEST]
        found = [each for each in self._store.generations() if each.digest == digest]
        newest = max((each.number for each in found if each.sealed), default=None)
        for each in reversed(found):
            if each.sealed and each.number != newest:
                continue
            record = self._store.record(each.number)
            if record is None or not record.intact:
                continue
            if json.loads(record.job) == dict(job.fingerprint):
                return each, record
        return None

    def _claim(self, generation: int, job: str | None = None) -> None:
        if not self._store.claim(generation, self._owner, job):
            raise MlctlError(
                ErrorCode.JOB_RUNNING,
                f"a job on another machine writes generation {generation} of precomputed://{self._name}",
                f"Wait for its end. If that machine is dead, run this again in {LEASE_SECONDS:.0f} "
                "s: then its lease has run out.",
            )

    def _resume(self, job: Job, generation: int, record: JobRecord) -> None:
        self._job, self._generation = job, generation
        self._done = {name: Marker.from_json(text) for name, text in record.units.items()}
        self._lease = Lease(self._store, generation, self._owner)

    def _drop_unused(self, generations: Sequence[Generation], digest: str) -> None:
        """Drop those of this model that never became live and that no running job writes."""
        for each in generations:
            never_live = each.digest == digest and each.flipped_at is None
            if never_live and self._store.claim(each.number, self._owner):
                self._store.drop(each.number)

    def _begun(self) -> Job:
        assert self._job is not None, "the job was not begun"
        return self._job

    def _key_column(self, job: Job) -> str:
        keep = job.keep
        key = self._key or (keep[0] if len(keep) == 1 else None)
        if key is None or key not in keep:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"precomputed://{self._name} needs the column of the entity keys",
                "Name it with --keep COLUMN; with several, say which: --option key=COLUMN.",
            )
        return key


def _machine_id(lock: int) -> str:
    """Return the id in the locked file; the first job of this machine writes it."""
    machine = os.pread(lock, _ID_CHARS, 0).decode()
    if len(machine) != _ID_CHARS:
        machine = uuid4().hex
        os.pwrite(lock, machine.encode(), 0)
        os.fsync(lock)
    return machine


def _as_text(job: Job) -> str:
    return json.dumps(dict(job.fingerprint))


def output_specs(job: Job) -> list[TensorSpec]:
    """Return the outputs among a job's columns, flat.

    UNSUPPORTED_MODEL for those of varying length.
    """
    import pyarrow as pa

    others = {*job.keep, DIGEST_COLUMN}
    specs = []
    for field in job.schema:
        if field.name in others:
            continue
        kind = field.type
        shape: tuple[int, ...] = (DYNAMIC,)
        if pa.types.is_fixed_size_list(kind):
            kind, shape = kind.value_type, (DYNAMIC, kind.list_size)
        if pa.types.is_list(kind):
            raise MlctlError(
                ErrorCode.UNSUPPORTED_MODEL,
                f"output {field.name!r} varies in length, which cannot be precomputed",
            )
        text = pa.types.is_string(kind)
        dtype = Datatype.BYTES if text else _DATATYPES[np.dtype(kind.to_pandas_dtype())]
        specs.append(TensorSpec(name=field.name, dtype=dtype, shape=shape))
    return specs


def _rows(table: pa.Table, job: Job, at: float) -> list[PrecomputedRow]:
    """Return the rows as they are stored; INVALID_INPUT for one without a key."""
    specs = output_specs(job)
    payloads = RowCodec(specs).encode({spec.name: _array(table, spec) for spec in specs})
    keys = [key_text(key) for key in table[job.fingerprint[_KEY]].to_pylist()]
    return [PrecomputedRow(key, at, payload) for key, payload in zip(keys, payloads, strict=True)]


def _array(table: pa.Table, spec: TensorSpec) -> np.ndarray:
    column: Any = table[spec.name].combine_chunks()
    shape = (table.num_rows, *spec.shape[1:])
    flat = column.flatten() if len(shape) > 1 else column
    if spec.dtype is not Datatype.BYTES:
        return np.asarray(flat.to_numpy(zero_copy_only=False)).reshape(shape)
    texts = np.empty(len(flat), object)
    texts[:] = [text.encode() for text in flat.to_pylist()]
    return texts.reshape(shape)


@contextmanager
def _translated() -> Iterator[None]:
    """Raise SINK_UNAVAILABLE, which the run retries, if the store is unavailable."""
    try:
        yield
    except StoreError as error:
        raise MlctlError(
            ErrorCode.SINK_UNAVAILABLE, f"precomputed answers cannot be stored: {error}"
        ) from error
