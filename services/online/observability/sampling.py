"""Choose the requests whose tensors are recorded, and write them to disk.

The settings decide, or a control file while it exists, which all workers of a running server read:
how much to record, and until when. The selection is `mlctl.bundle.sampling.is_sampled`, so that two
servers that get the same requests record the same ones.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import numpy as np

from mlctl.bundle.arrays import Arrays
from mlctl.bundle.sampling import Sampling, is_sampled
from mlctl.core.clock import Clock
from mlctl.core.errors import MlctlError
from mlctl.services.online.observability.backlog import Backlog
from mlctl.services.online.observability.calls import RecordedPayload, RequestRecord
from mlctl.services.online.observability.segments import SegmentWriter

# Limits of what is not on disk yet; a segment is written when it has a part of that.
MAX_BYTES = 64 << 20
MAX_REQUESTS = 50_000
SEGMENT_BYTES = 8 << 20
SEGMENT_REQUESTS = 10_000
# The memory of an element of bytes beside its content, roughly.
_BYTES_OVERHEAD = 40
OFF = Sampling()
logger = logging.getLogger("mlctl.observe")


class SamplingControl:
    """The current sampling: the control file's while there is one, else the settings'."""

    def __init__(self, settings: Sampling, path: Path | None) -> None:
        self._settings = settings
        self._path = path
        self._mark: tuple[int, ...] | None = None
        self._current = settings

    def poll(self, now: float) -> Sampling:
        """Return the sampling at Unix time `now`; an unreadable file records nothing."""
        mark = self._read_mark()
        if mark != self._mark:
            self._mark = mark
            self._current = self._settings if mark is None else self._read()
            logger.info("requests are recorded as %s", self._current.to_json())
        current = self._current
        if current.until is not None and now >= current.until:
            return replace(current, share=0.0)
        return current

    def _read_mark(self) -> tuple[int, ...] | None:
        """Return values that change whenever the file does; None if there is none."""
        if self._path is None:
            return None
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _read(self) -> Sampling:
        assert self._path is not None
        try:
            commanded = Sampling.from_json(self._path.read_text())
        except (MlctlError, OSError, UnicodeDecodeError) as error:
            logger.warning("nothing is recorded: MLCTL_SAMPLE_CONTROL cannot be used: %s", error)
            return OFF
        # The file may add to the tensors that the server was started without, and remove none.
        redact = {*commanded.redact, *self._settings.redact}
        return replace(commanded, redact=tuple(sorted(redact)))


class Recorder:
    """Takes chosen requests; the observer's thread writes them."""

    def __init__(self, writer: SegmentWriter, control: SamplingControl, clock: Clock) -> None:
        self._writer = writer
        self._control = control
        self._clock = clock
        self._waiting = Backlog[RecordedPayload](MAX_REQUESTS, MAX_BYTES)
        self._pending: list[RecordedPayload] = []
        self._pending_bytes = 0
        self._sampling = control.poll(clock.wall())
        self._lost = 0
        self.rows = 0

    @property
    def dropped(self) -> int:
        """Chosen requests that were not recorded: they came too fast, or the disk was full."""
        return self._waiting.dropped + self._lost

    @property
    def sampling(self) -> bool:
        """Whether any request is recorded now."""
        return self._sampling.share > 0

    def choose(self, request_id: bytes) -> Sampling | None:
        """Return how to record the request with this id; None if it is not chosen."""
        sampling = self._sampling
        if sampling.share > 0 and is_sampled(request_id, sampling.share):
            return sampling
        return None

    def put(
        self,
        record: RequestRecord,
        sampling: Sampling,
        at: float,
        rows: int,
        request_inputs: Arrays,
        answered: Arrays,
    ) -> None:
        """Take one request, whose arrays do not change from now on."""
        inputs = _kept(request_inputs, sampling) if sampling.inputs else {}
        # An answer is a part of its batch's, all of which would be held.
        outputs = {name: array.copy() for name, array in _kept(answered, sampling).items()}
        size = max(_size(inputs), record.bytes_in or 0 if inputs else 0) + _size(outputs)
        request_id = record.request_id.decode("latin-1")
        self._waiting.put(
            RecordedPayload(request_id, at, sampling, rows, size, inputs, outputs), size
        )

    def flush(self) -> None:
        """Read the control file, and write the samples that are due; OSError if that fails."""
        now = self._clock.wall()
        before, self._sampling = self._sampling, self._control.poll(now)
        self._gather()
        if self._pending and (before != self._sampling or self._is_due(now)):
            self._write(now)

    def close(self) -> None:
        """Write the rest; OSError if that fails."""
        self._sampling = OFF
        self._gather()
        if self._pending:
            self._write(self._clock.wall())

    def _gather(self) -> None:
        found = self._waiting.take()
        self._pending += found
        self._pending_bytes += sum(payload.size for payload in found)

    def _is_due(self, now: float) -> bool:
        first = self._pending[0]
        return (
            now - first.at >= first.sampling.flush_seconds
            or self._pending_bytes >= SEGMENT_BYTES
            or len(self._pending) >= SEGMENT_REQUESTS
        )

    def _write(self, now: float) -> None:
        pending, size = self._pending, self._pending_bytes
        self._pending, self._pending_bytes = [], 0
        written = 0
        try:
            for sampling, group in groupby(pending, key=lambda payload: payload.sampling):
                payloads = list(group)
                self.rows += self._writer.write(payloads, sampling, now)
                written += len(payloads)
        finally:
            self._lost += len(pending) - written
            self._waiting.free(size)


def _kept(arrays: Arrays, sampling: Sampling) -> dict[str, np.ndarray]:
    return {name: array for name, array in arrays.items() if name not in sampling.redact}


def _size(arrays: Arrays) -> int:
    return sum(
        sum(map(len, array.flat)) + _BYTES_OVERHEAD * array.size
        if array.dtype == object
        else array.nbytes
        for array in arrays.values()
    )
