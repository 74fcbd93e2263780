"""Precomputed answers as the output of a batch job: one generation, live once it is complete.

The store records which units are committed, beside their rows: rows that it loses are written
again, and the job can go on from any machine. A lease on its generation shows other machines that
the job runs. A job resumes or drops only generations of its own machine or without a lease.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qsl
from uuid import uuid4

import numpy as np

from bundle.clock import Clock, SystemClock
from bundle.errors import ErrorCode, MlctlError
from bundle.tensors import DYNAMIC, Datatype, TensorSpec
from services.batch.base import (
    DIGEST_COLUMN,
    SCORED_AT_COLUMN,
    BadRow,
    BatchTotals,
    Job,
    JobProgress,
    Quarantined,
    SinkRequest,
    UnitResult,
)
from services.batch.ledger import bad_rows, job_from_text, schemas_as_text
from services.batch.locks import lock_job
from services.precomputed.base import (
    LEASE_SECONDS,
    Generation,
    GenerationCommit,
    JobRecord,
    PrecomputedRow,
    PrecomputedStore,
    StoreError,
    check_name,
    rows_lost,
)
from services.precomputed.lease import Lease
from services.precomputed.row_codec import RowCodec
from services.precomputed.settings import read_store_location
from services.precomputed.store_urls import lock_path, open_store
from services.protocol.keys import MAX_KEY_CHARS, is_key

if TYPE_CHECKING:
    import pyarrow as pa

_COMMIT_ROWS = 50_000
_KEY, _DIGEST = "precomputed key", "model digest"
_ID_CHARS = 32
_DATATYPES: Mapping[np.dtype, Datatype] = MappingProxyType(
    {np.dtype(each.numpy_name): each for each in Datatype if each is not Datatype.BYTES}
)


def open_sink(request: SinkRequest) -> PrecomputedSink:
    """Open the sink of `precomputed://NAME`, in the store that MLCTL_PRECOMPUTED_STORE names.

    Options, also as a query of the location: `key` is the column with the entity keys,
    `flip=no` leaves it to `mlctl precomputed flip` to make the generation live.
    """
    place, _, query = request.location.partition("://")[2].partition("?")
    name, options = check_name(place.rstrip("/")), {**dict(parse_qsl(query)), **request.options}
    flip = options.get("flip", "yes")
    if flip not in {"yes", "no"}:
        raise MlctlError(ErrorCode.INVALID_INPUT, f"--option flip={flip}: write yes or no")
    where = read_store_location()
    store, lock = open_store(name, where), lock_path(name, where)
    return PrecomputedSink(name, store, lock, options.get("key"), flip=flip == "yes")


class PrecomputedSink:
    """Writes one generation of `store`.

    Jobs of this machine with the same name exclude each other with the file `lock`. It contains
    the machine's id, which is the owner of their generations.
    """

    commit_rows = _COMMIT_ROWS

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
        self._done: set[str] = set()

    def __enter__(self) -> Self:
        self._lock_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = lock_job(self._lock_path, f"precomputed://{self._name}")
        self._owner = _machine_id(self._lock)
        return self

    def __exit__(self, *_exc_info: object) -> None:
        if self._lease is not None:
            self._lease.close()
        self._store.close()
        if self._lock is not None:
            os.close(self._lock)

    def begin(self, job: Job, *, restart: bool = False) -> JobProgress:
        """Resume the generation of the same job, or create one beside those of other jobs."""
        if job.partition_by:
            raise MlctlError(
                ErrorCode.INVALID_INPUT, "--partition-by: precomputed:// has no folders"
            )
        key = self._key_column(job)
        job = replace(
            job, fingerprint={**job.fingerprint, _KEY: key}, facts={**job.facts, _KEY: key}
        )
        output_specs(job)  # rejects a model before anything is scored
        with _translated():
            found = None if restart else self._find(job)
            if found is None:
                digest = job.fingerprint[_DIGEST]
                self._drop_unused([g for g in self._store.generations() if not g.sealed], digest)
                at = self._clock.wall()
                number = self._store.create(digest, at, self._owner, _as_text(job))
                record = JobRecord("", {}, 0, intact=True)
                return self._resume(job, number, record, finished=False)
            generation, record = found
            self._claim(generation.number, _as_text(job))
            # One that is complete and not live yet is made live by a run that may do that.
            live = generation.flipped_at is not None or not self._flip
            finished = generation.sealed and live
            return self._resume(job, generation.number, record, finished=finished)

    def commit(self, results: Sequence[UnitResult]) -> None:
        job = self._begun()
        bad = [*bad_rows(results)]
        commit = GenerationCommit(
            [row for result in results for row in _rows(result.table, job)],
            {r.unit.id: json.dumps([r.table.num_rows, r.skipped]) for r in results},
            {f"{each[0]}/{each[1]}": json.dumps(each, ensure_ascii=False) for each in bad},
            [f"{unit}/{row}" for result in results for unit, row in result.resolved],
        )
        with _translated():
            self._store.commit(self._generation, self._owner, commit, len(self._done))
        self._done.update(commit.units)

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

    def require_job(self) -> None:
        with _translated():
            self._newest()

    def stored(self) -> tuple[Job, JobProgress]:
        with _translated():
            generation, record = self._newest()
            if not record.intact:
                raise rows_lost(generation.number)
            self._claim(generation.number)
        self._flip = False  # which generation is live is not for a redrive to decide
        job = _from_text(record.job)
        return job, self._resume(job, generation.number, record, finished=generation.sealed)

    def quarantined(self) -> Iterator[Quarantined]:
        with _translated():
            found = [json.loads(each) for each in self._store.quarantine(self._generation).values()]
        for unit, row, origin, reason, values in sorted(found, key=lambda each: each[:2]):
            yield Quarantined(unit, origin, BadRow(row, reason, json.loads(values)))

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
            if _from_text(record.job).fingerprint == job.fingerprint:
                return each, record
        return None

    def _newest(self) -> tuple[Generation, JobRecord]:
        """Return the generation of the job that was begun last; NOT_FOUND if there is none."""
        for each in reversed(self._store.generations()):
            record = self._store.record(each.number)
            if record is not None:
                return each, record
        raise MlctlError(
            ErrorCode.NOT_FOUND, f"precomputed://{self._name} holds no batch job's answers"
        )

    def _claim(self, generation: int, job: str | None = None) -> None:
        if not self._store.claim(generation, self._owner, job):
            raise MlctlError(
                ErrorCode.JOB_RUNNING,
                f"a job on another machine writes generation {generation} of precomputed://{self._name}",
                f"Wait for its end. If that machine is dead, run this again in {LEASE_SECONDS:.0f} "
                "s: then its lease has run out.",
            )

    def _resume(
        self, job: Job, generation: int, record: JobRecord, *, finished: bool
    ) -> JobProgress:
        self._job, self._generation, self._done = job, generation, set(record.units)
        self._lease = Lease(self._store, generation, self._owner)
        counts = [json.loads(each) for each in record.units.values()]
        totals = BatchTotals(
            len(counts), sum(rows for rows, _ in counts), record.bad, sum(s for _, s in counts)
        )
        return JobProgress(frozenset(record.units), totals, finished)

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
        keep = _kept(job)
        key = self._key or (keep[0] if len(keep) == 1 else None)
        if key is None or key not in keep:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"precomputed://{self._name} needs the column of the entity keys",
                "Name it with --keep COLUMN; with several, say which: --option key=COLUMN.",
            )
        return key


def _machine_id(lock: int) -> str:
    """The id in the locked file; the first job of this machine writes it."""
    known = os.pread(lock, _ID_CHARS, 0).decode()
    if len(known) != _ID_CHARS:
        known = uuid4().hex
        os.pwrite(lock, known.encode(), 0)
        os.fsync(lock)
    return known


def _as_text(job: Job) -> str:
    facts = {**job.facts, **schemas_as_text(job)}
    return json.dumps({"fingerprint": dict(job.fingerprint), "facts": facts})


def _from_text(text: str) -> Job:
    stored = json.loads(text)
    return job_from_text(stored["fingerprint"], stored["facts"])


def output_specs(job: Job) -> list[TensorSpec]:
    """The outputs among a job's columns, flat; UNSUPPORTED_MODEL for those of varying length."""
    import pyarrow as pa

    others = {*_kept(job), DIGEST_COLUMN, SCORED_AT_COLUMN}
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


def _kept(job: Job) -> list[str]:
    from services.batch.job import BatchConfig

    wanted = BatchConfig.from_text(job.facts["wanted"])
    return list(wanted.keep)


def _rows(table: pa.Table, job: Job) -> list[PrecomputedRow]:
    """The table's rows as they are stored; INVALID_INPUT for one without a key."""
    digests = table[DIGEST_COLUMN].unique().to_pylist()
    if digests not in ([], [job.fingerprint[_DIGEST]]):
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            "these are answers of another model than the generation's",
            "Begin a generation of that model with `mlctl batch run`.",
        )
    specs = output_specs(job)
    payloads = RowCodec(specs).encode({spec.name: _array(table, spec) for spec in specs})
    keys = [_key_text(key) for key in table[job.facts[_KEY]].to_pylist()]
    micros = np.asarray(table[SCORED_AT_COLUMN].to_numpy(), "datetime64[us]").astype(np.int64)
    return list(map(PrecomputedRow, keys, (micros / 1e6).tolist(), payloads))


def _key_text(key: object) -> str:
    text = str(key) if isinstance(key, int) and not isinstance(key, bool) else key
    if not isinstance(text, str) or not is_key(text):
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"a row's entity key is {key!r:.80}: neither a whole number nor a string of 1 to "
            f"{MAX_KEY_CHARS} characters",
            "Leave such rows out with --filter.",
        )
    return text


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
    """A store that is away may come back: the engine retries SINK_UNAVAILABLE."""
    try:
        yield
    except StoreError as error:
        raise MlctlError(
            ErrorCode.SINK_UNAVAILABLE, f"precomputed answers cannot be stored: {error}"
        ) from error
