"""Answers as a generation for hybrid serving: written unseen, and live once it is complete.

The ledger is beside the store and not in it: rows are put by key before their units enter the
ledger, so that to put a unit again after a kill changes nothing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qsl

import numpy as np

from bundle.clock import Clock, SystemClock
from bundle.errors import ErrorCode, MlctlError
from bundle.tensors import DYNAMIC, Datatype, TensorSpec
from services.batch.base import (
    DIGEST_COLUMN,
    SCORED_AT_COLUMN,
    Job,
    Progress,
    Quarantined,
    SinkRequest,
    UnitResult,
)
from services.batch.ledger import Ledger
from services.batch.locking import lock_job
from services.hybrid.base import Row, Store, StoreError, check_name
from services.hybrid.keys import MAX_KEY_CHARS, is_key
from services.hybrid.places import ledger_folder, open_store
from services.hybrid.rows import RowCodec
from services.hybrid.settings import load_place

if TYPE_CHECKING:
    import pyarrow as pa

_COMMIT_ROWS = 50_000
_KEY, _GENERATION, _DIGEST = "hybrid key", "hybrid generation", "model digest"
_DATATYPES: Mapping[np.dtype, Datatype] = MappingProxyType(
    {np.dtype(each.numpy_name): each for each in Datatype if each is not Datatype.BYTES}
)


def open_sink(request: SinkRequest) -> HybridSink:
    """The answers of `hybrid://NAME`, in the store that MLCTL_HYBRID_STORE names.

    Options, also as a query of the location: `key` is the column with the entity keys,
    `flip=no` leaves it to `mlctl hybrid flip` to make the generation live.
    """
    place, _, query = request.location.partition("://")[2].partition("?")
    name, options = check_name(place.rstrip("/")), {**dict(parse_qsl(query)), **request.options}
    flip = options.get("flip", "yes")
    if flip not in {"yes", "no"}:
        raise MlctlError(ErrorCode.INVALID_INPUT, f"--option flip={flip}: write yes or no")
    where = load_place()
    store, folder = open_store(name, where), ledger_folder(name, where)
    return HybridSink(name, store, folder, options.get("key"), flip=flip == "yes")


class HybridSink:
    """A sink that fills one generation of `store`; its ledger is in `folder`."""

    commit_rows = _COMMIT_ROWS

    def __init__(
        self,
        name: str,
        store: Store,
        folder: Path,
        key: str | None = None,
        *,
        flip: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self._name = name
        self._store = store
        self._folder = folder
        self._key = key
        self._flip = flip
        self._clock = clock or SystemClock()
        self._lock: int | None = None
        self._ledger: Ledger | None = None
        self._job: Job | None = None

    def __enter__(self) -> Self:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = self._folder.with_suffix(".lock")
        self._lock = lock_job(lock, f"hybrid://{self._name}")
        return self

    def __exit__(self, *_exc_info: object) -> None:
        if self._ledger is not None:
            self._ledger.__exit__()
        self._store.close()
        if self._lock is not None:
            os.close(self._lock)

    def begin(self, job: Job, *, restart: bool = False) -> Progress:
        """Go on with the generation of the same job, or begin one: another job is no obstacle."""
        if job.partition_by:
            raise MlctlError(ErrorCode.INVALID_INPUT, "--partition-by: hybrid:// has no folders")
        key = self._key_column(job)
        job = replace(job, fingerprint={**job.fingerprint, _KEY: key})
        output_specs(job)  # refuses a model before anything is scored
        with _told():
            known = self._open().stored()
            going = known is not None and known.fingerprint == job.fingerprint and not restart
            number = int(known.facts[_GENERATION]) if known is not None and going else None
            if number is None or number not in {g.number for g in self._store.generations()}:
                self._forget()
                number = self._start(job.fingerprint[_DIGEST])
        self._job = replace(job, facts={**job.facts, _KEY: key, _GENERATION: str(number)})
        return self._open().begin(self._job)

    def commit(self, results: Sequence[UnitResult]) -> None:
        job = self._known()
        rows = [row for result in results for row in _rows(result.table, job)]
        with _told():
            self._store.put(int(job.facts[_GENERATION]), rows)
        self._open().commit(results, ())

    def finish(self, summary: Mapping[str, object]) -> None:  # noqa: ARG002 - the engine's
        """Make the generation live, unless that is not wanted or was done before."""
        number = int(self._known().facts[_GENERATION])
        with _told():
            self._store.seal(number)
            if self._flip:
                self._store.flip(number, self._clock.wall())
        self._open().finish()

    def require_job(self) -> None:
        if not self._path.exists():
            raise self._no_job()

    def stored(self) -> tuple[Job, Progress]:
        job = self._open().stored()
        if job is None:
            raise self._no_job()
        self._job = job
        progress = self._open().progress()
        # Its generation was live once; whoever has gone back since wants it so.
        self._flip = self._flip and not progress.finished
        return job, progress

    def quarantined(self) -> Iterator[Quarantined]:
        return self._open().quarantined()

    @property
    def _path(self) -> Path:
        return self._folder / "ledger.db"

    def _no_job(self) -> MlctlError:
        return MlctlError(
            ErrorCode.NOT_FOUND, f"hybrid://{self._name} holds no batch job's answers"
        )

    def _open(self) -> Ledger:
        if self._ledger is None:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            self._ledger = Ledger(self._path)
        return self._ledger

    def _known(self) -> Job:
        assert self._job is not None, "the job was not begun"
        return self._job

    def _key_column(self, job: Job) -> str:
        keep = _kept(job)
        key = self._key or (keep[0] if len(keep) == 1 else None)
        if key is None or key not in keep:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"hybrid://{self._name} needs the column of the entity keys",
                "Name it with --keep COLUMN; with several, say which: --option key=COLUMN.",
            )
        return key

    def _forget(self) -> None:
        """The ledger of the job before; its answers stay if they were ever live."""
        self._open().__exit__()
        self._ledger = None
        shutil.rmtree(self._folder)

    def _start(self, digest: str) -> int:
        """A new generation in the place of those of this model that never became live."""
        for each in self._store.generations():
            if each.digest == digest and each.flipped_at is None:
                self._store.drop(each.number)
        return self._store.create(digest, self._clock.wall())


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
    from services.batch.job import Wanted

    wanted = Wanted.from_text(job.facts["wanted"])
    return list(wanted.keep)


def _rows(table: pa.Table, job: Job) -> list[Row]:
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
    return list(map(Row, keys, (micros / 1e6).tolist(), payloads))


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
def _told() -> Iterator[None]:
    """A store that is away may come back: the engine waits for it."""
    try:
        yield
    except StoreError as error:
        raise MlctlError(
            ErrorCode.SINK_UNAVAILABLE, f"precomputed answers cannot be stored: {error}"
        ) from error
