"""Precomputed answers as the output of a batch job: one generation, live once it is complete.

The store records which units are committed, beside their rows: rows that it loses are written
again, and any machine can resume the job. Two runs of one job write the same rows.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
import pyarrow as pa

from mlctl.bundle.tensors import Datatype, TensorSpec
from mlctl.core.clock import Clock, SystemClock
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.batch.units import (
    Job,
    Marker,
    ScoredPiece,
    Unit,
)
from mlctl.services.precomputed.base import (
    ABANDONED_SECONDS,
    JobRecord,
    PrecomputedRow,
    PrecomputedStore,
    StoredGeneration,
    StoreError,
    check_name,
)
from mlctl.services.precomputed.row_codec import RowCodec, check_storable
from mlctl.services.precomputed.settings import read_store_location
from mlctl.services.precomputed.store_urls import open_store
from mlctl.services.protocol.keys import key_text

_KEY, _DIGEST = "precomputed key", "model digest"


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
    store = open_store(name, read_store_location())
    return PrecomputedSink(name, store, parameters.get("key"), flip=flip == "yes")


class PrecomputedSink:
    """Writes one generation of `store`."""

    forbids_nul = False
    waits = True

    def __init__(
        self,
        name: str,
        store: PrecomputedStore,
        key: str | None = None,
        *,
        flip: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self._name = name
        self._store = store
        self._key = key
        self._flip = flip
        self._clock = clock or SystemClock()
        self._job: Job | None = None
        self._generation = 0
        self._done: dict[str, Marker] = {}
        self._commits = threading.Lock()

    def begin(self, job: Job, *, restart: bool = False) -> tuple[dict[str, Marker], bool]:
        """Resume the generation of the same job, or create one beside those of other jobs."""
        if job.partition_by:
            raise MlctlError(
                ErrorCode.INVALID_INPUT, "--partition-by: precomputed:// has no folders"
            )
        job = replace(job, fingerprint={**job.fingerprint, _KEY: self._key_column(job)})
        check_storable(job.outputs)  # before anything is scored
        self._job = job
        with _translated():
            found = self._find(job)
            if found is not None and restart:
                if found[0].flipped_at is None:
                    self._store.drop(found[0].number)
                found = None
            if found is None:
                text = json.dumps(dict(job.fingerprint))
                at = self._clock.wall()
                self._generation = self._store.create(job.fingerprint[_DIGEST], at, text)
                return {}, False
            generation, record = found
            self._generation = generation.number
            self._done = {name: Marker.from_json(text) for name, text in record.units.items()}
            # One that is complete and not live yet is made live by a run that may do that.
            live = generation.flipped_at is not None or not self._flip
            return dict(self._done), generation.sealed and live

    def find(self, unit: Unit) -> Marker | None:
        return self._done.get(unit.id)

    def commit(self, unit: Unit, pieces: Iterable[ScoredPiece]) -> Marker:
        job, found = self._begun(), list(pieces)
        at = self._clock.wall()
        rows = [row for piece in found for row in _rows(piece.answers, job, at)]
        marker = Marker(unit.id, origin=unit.origin)
        for piece in found:
            marker += piece
        with self._commits, _translated():
            units = {unit.id: marker.as_json()}
            self._store.commit(self._generation, rows, units, len(self._done))
            self._done[unit.id] = marker
        return marker

    def finish(self, summary: Mapping[str, object]) -> None:  # noqa: ARG002 - the engine's
        """Complete the generation and, unless flip=no, make it live.

        Drops older generations of the same model that never became live: the complete ones, and
        abandoned ones.
        """
        with _translated():
            self._store.seal(self._generation, len(self._done))
            if not self._flip:
                return
            now = self._clock.wall()
            self._store.flip(self._generation, now)
            digest = self._begun().fingerprint[_DIGEST]
            for each in self._store.generations():
                older = each.number < self._generation and each.digest == digest
                unused = each.sealed or each.made_at < now - ABANDONED_SECONDS
                if older and unused and each.flipped_at is None:
                    self._store.drop(each.number)

    def close(self) -> None:
        self._store.close()

    def _find(self, job: Job) -> tuple[StoredGeneration, JobRecord] | None:
        """Return the generation of the same job: one in progress, or the newest complete one.

        Drops those that have lost rows and never became live.
        """
        digest = job.fingerprint[_DIGEST]
        found = [each for each in self._store.generations() if each.digest == digest]
        newest = max((each.number for each in found if each.sealed), default=None)
        for each in reversed(found):
            record = self._store.record(each.number)
            if record is None or json.loads(record.job) != dict(job.fingerprint):
                continue
            if not record.intact:
                if each.flipped_at is None:
                    self._store.drop(each.number)
            elif not each.sealed or each.number == newest:
                return each, record
        return None

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


def _rows(table: pa.Table, job: Job, at: float) -> list[PrecomputedRow]:
    """Return the rows as they are stored; INVALID_INPUT for one without a key."""
    payloads = RowCodec(job.outputs).encode({s.name: _array(table, s) for s in job.outputs})
    try:
        keys = [key_text(key) for key in table[job.fingerprint[_KEY]].to_pylist()]
    except MlctlError as error:
        hint = "Leave such rows out with --filter."
        raise MlctlError(error.code, f"a row's {error.message}", hint) from error
    return [PrecomputedRow(key, at, payload) for key, payload in zip(keys, payloads, strict=True)]


def _array(table: pa.Table, spec: TensorSpec) -> np.ndarray:
    """Return the column of an output in the shape of the model."""
    column: Any = table[spec.name].combine_chunks()
    flat = column.flatten() if pa.types.is_nested(column.type) else column
    shape = (table.num_rows, *spec.shape[1:])
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
