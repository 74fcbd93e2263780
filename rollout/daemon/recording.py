"""Have a deployment's servers record a share of their answers, and read what they recorded.

Recording ends by itself soon after the last `observe`, so a daemon that died leaves nothing on. The
share keeps the recorders' work small, whatever the traffic is. The shadow compares the rows that
are read here; what `mlctl feedback` may label later is kept as predictions.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable, Mapping

from mlctl.bundle.sampling import Sampling, write_sampling
from mlctl.core.clock import Clock
from mlctl.core.errors import MlctlError
from mlctl.rollout.daemon.segments import Segments
from mlctl.rollout.domain.shadow.join import Recorded
from mlctl.rollout.domain.shadow.labels import LabelledTrials, trials
from mlctl.rollout.domain.spec import RolloutSpec, Slot
from mlctl.rollout.drivers.local.samples import SampleFolder, redacted
from mlctl.rollout.journal.predictions import PredictionStore

MAX_ROWS_PER_SECOND = 200.0
MAX_BYTES_PER_SECOND = float(8 << 20)
_FIRST_ROWS_PER_SECOND = 20.0  # until the size of a row is measured
_MIN_SHARE = 0.01
_FLUSH_SECONDS = 1.0
_MAX_SEGMENT_BYTES = 256 << 20
_UNUSABLE = (sqlite3.Error, OSError, MlctlError)
_LOG = logging.getLogger(__name__)
_LEASE_SECONDS = 60.0


def needed_share(requests_per_second: float, rows: int, size: int, requests: int) -> float:
    """The share of the requests to record, at a rate above 0.

    It follows from what was recorded so far: `requests` with `rows`, of `size` bytes in all.
    """
    if requests == 0:
        affordable = _FIRST_ROWS_PER_SECOND
    else:
        each, heavy = rows / requests, size / requests
        affordable = min(MAX_ROWS_PER_SECOND / each, MAX_BYTES_PER_SECOND / max(heavy, 1.0))
    return min(1.0, max(_MIN_SHARE, affordable / requests_per_second))


class Recording:
    """What both slots of the deployment in `folder` record.

    While `keep` is set, the predictions are kept for `keep_seconds`; else they are only compared.
    """

    def __init__(self, folder: SampleFolder, clock: Clock, keep_seconds: float) -> None:
        self.folder = folder
        self.keep = False
        self._clock = clock
        self._segments = {slot: Segments(folder.segments(slot)) for slot in Slot}
        self._keep_seconds = keep_seconds
        self._opened: PredictionStore | None = None
        self._labels = -1
        self._complaint = ""
        self._share = 0.0
        self._inputs = False
        self._lease = 0.0
        self._last: float | None = None

    def observe(
        self, requests: int, *, inputs: bool, max_share: float = 1.0
    ) -> Mapping[Slot, list[Recorded]]:
        """Return what each slot recorded since the call before, and keep the recording on.

        `requests` came in that time; at most `max_share` of them are recorded. With `inputs` their
        inputs are recorded too, and the segments stay until `stop`.
        """
        now = self._clock.wall()
        if self._last is None:
            self._take(now, remove=True)  # what an earlier recording left
        self._command(requests, now, inputs=inputs, max_share=max_share)
        return self._take(now, remove=not inputs)

    def collect(self) -> None:
        """Keep what the servers still wrote after `stop`."""
        if self.keep and self._last is None:
            self._take(self._clock.wall(), remove=True)

    def stop(self) -> None:
        """Stop recording, keep the predictions and remove the segments. Idempotent."""
        self.folder.control.unlink(missing_ok=True)
        self._take(self._clock.wall(), remove=True)
        self._share = self._lease = 0.0
        self._last = None

    def labelled(
        self, candidate: Iterable[str], live: Iterable[str], spec: RolloutSpec
    ) -> LabelledTrials | None:
        """Return both revisions' labelled answers, by their digests; None without new labels."""
        try:
            store = self._store()
            version = store.version()
            if version == self._labels:
                return None
            found = LabelledTrials(
                trials(store.blocks(candidate, spec), spec), trials(store.blocks(live, spec), spec)
            )
        except _UNUSABLE as error:
            self._complain(error)
            return None
        self._labels = version
        return found

    def _store(self) -> PredictionStore:
        if self._opened is None:
            self._opened = PredictionStore(self.folder.predictions, self._keep_seconds)
        return self._opened

    def _take(self, now: float, *, remove: bool) -> dict[Slot, list[Recorded]]:
        found = {slot: list(segments.new()) for slot, segments in self._segments.items()}
        if self.keep:
            try:
                self._store().add((row for rows in found.values() for row in rows), now)
            except _UNUSABLE as error:
                self._complain(error)
        if remove:
            for segments in self._segments.values():
                segments.clear()
        return found

    def _complain(self, error: Exception) -> None:
        """Log, once in a row, that predictions are lost: the other gates go on without them."""
        if str(error) != self._complaint:
            self._complaint = str(error)
            _LOG.warning("predictions are not kept: %s", error)

    def _command(self, requests: int, now: float, *, inputs: bool, max_share: float) -> None:
        """Write the control document when its share or its end is due for a change."""
        seconds = None if self._last is None else now - self._last
        self._last = now
        share = min(self._share or _MIN_SHARE, max_share)
        if seconds and requests:
            costs = [segments.cost for segments in self._segments.values()]
            rows, size, recorded = (
                sum(getattr(cost, name) for cost in costs) for name in ("rows", "size", "requests")
            )
            needed = min(needed_share(requests / seconds, rows, size, recorded), max_share)
            share = share if share / 2 < needed < share * 2 else needed
        changed = (share, inputs) != (self._share, self._inputs)
        if not changed and self._lease - now > _LEASE_SECONDS / 2:
            return
        for slot in Slot:
            self.folder.segments(slot).mkdir(parents=True, exist_ok=True)
        self._share, self._inputs, self._lease = share, inputs, now + _LEASE_SECONDS
        sampling = Sampling(
            share, self._lease, _FLUSH_SECONDS, _MAX_SEGMENT_BYTES, redacted(), inputs
        )
        write_sampling(self.folder.control, sampling)
