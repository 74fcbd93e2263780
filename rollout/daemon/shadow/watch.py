"""Have the servers record their answers, read the recordings, and compare them.

Recording ends by itself soon after the last tick, so a daemon that died leaves nothing
on. Its share of the requests keeps the recorder's work small, whatever the traffic is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from bundle.clock import Clock
from bundle.sampling import Sampling, write_sampling
from rollout.daemon.shadow.disagreements import Disagreements
from rollout.daemon.shadow.segments import Segments
from rollout.domain.compare import LiveOutputs, compare, statistics
from rollout.domain.drift import Drift, rows_needed
from rollout.domain.join import AnswerSide, Joiner, Pair
from rollout.domain.shadow_window import ShadowWindow
from rollout.domain.spec import RolloutSpec, Slot
from rollout.drivers.local.samples import SampleFolder, redacted

MAX_ROWS_PER_SECOND = 200.0
MAX_BYTES_PER_SECOND = float(8 << 20)
_FIRST_ROWS_PER_SECOND = 20.0  # until the size of a row is measured
_MIN_SHARE = 0.01
_FLUSH_SECONDS = 1.0
_GRACE_SECONDS = 15.0
_MAX_WAITING = 20_000
_MAX_SEGMENT_BYTES = 256 << 20
_LEASE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Parties:
    """The two sides: the candidate's slot, and the digests of which both sides name one."""

    candidate: Slot
    digests: Mapping[AnswerSide, frozenset[str]]

    def slot(self, side: AnswerSide) -> Slot:
        return self.candidate if side is AnswerSide.CANDIDATE else self.candidate.other


def wanted_share(requests_per_second: float, rows: int, size: int, requests: int) -> float:
    """The share of the requests to record, at a rate above 0.

    It follows from what was recorded so far: `requests` with `rows`, of `size` bytes in all.
    """
    if requests == 0:
        affordable = _FIRST_ROWS_PER_SECOND
    else:
        each, heavy = rows / requests, size / requests
        affordable = min(MAX_ROWS_PER_SECOND / each, MAX_BYTES_PER_SECOND / max(heavy, 1.0))
    return min(1.0, max(_MIN_SHARE, affordable / requests_per_second))


class ShadowComparison:
    """Compares the two revisions of one rollout while copies of requests reach the candidate."""

    def __init__(
        self,
        folder: SampleFolder,
        parties: Parties,
        spec: RolloutSpec,
        rollout: int,
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._folder = folder
        self._parties = parties
        self._spec = spec
        self._segments = {
            side: Segments(folder.segments(parties.slot(side))) for side in AnswerSide
        }
        self._joiner = Joiner(_GRACE_SECONDS, _MAX_WAITING)
        self._drift: dict[str, Drift] = {}
        self._outputs = LiveOutputs()
        self._pairs = 0
        self._share = 0.0
        self._lease = 0.0
        self._last_tick: float | None = None
        self._kept = Disagreements(folder.disagreements(rollout))

    def observe(self, live_requests: int) -> ShadowWindow:
        """What came since the tick before, and see to it that recording goes on.

        `live_requests` came in that time.
        """
        now = self._clock.wall()
        self._record(live_requests, now)
        pairs = [
            pair
            for side in AnswerSide
            for pair in self._joiner.join(
                side,
                (
                    row
                    for row in self._segments[side].new()
                    if row.digest in self._parties.digests[side] and row.answer
                ),
                now,
            )
        ]
        return self._judged(pairs, self._joiner.expire(now))

    def end(self) -> None:
        """Stop recording and remove what was recorded. Idempotent."""
        self._folder.control.unlink(missing_ok=True)
        self._clear()
        self._share = self._lease = 0.0
        self._last_tick = None

    def kept(self) -> str | None:
        """The path of the rows that were answered differently; None if there are none."""
        return str(self._kept.path) if self._kept.path.exists() else None

    def _clear(self) -> None:
        for segments in self._segments.values():
            segments.clear()

    def _record(self, live_requests: int, now: float) -> None:
        """Write the control document when its share or its end is due for a change."""
        if self._last_tick is None:
            self._clear()  # what an earlier rollout left
        seconds = None if self._last_tick is None else now - self._last_tick
        self._last_tick = now
        share = self._share or _MIN_SHARE
        if seconds and live_requests:
            cost = self._segments[AnswerSide.LIVE].cost
            wanted = wanted_share(live_requests / seconds, cost.rows, cost.size, cost.requests)
            share = share if share / 2 < wanted < share * 2 else wanted
        if share == self._share and self._lease - now > _LEASE_SECONDS / 2:
            return
        for side in AnswerSide:
            self._folder.segments(self._parties.slot(side)).mkdir(parents=True, exist_ok=True)
        self._share, self._lease = share, now + _LEASE_SECONDS
        write_sampling(
            self._folder.control,
            Sampling(share, self._lease, _FLUSH_SECONDS, _MAX_SEGMENT_BYTES, redacted()),
        )

    def _judged(self, pairs: list[Pair], lost: int) -> ShadowWindow:
        self._learn(pairs)
        requests: dict[str, list[bool]] = defaultdict(list)
        compared, apart = [], []
        for pair in pairs:
            found = compare(
                pair.live.answer, pair.candidate.answer, self._spec.tolerance, self._outputs
            )
            compared.append(found)
            requests[pair.live.key[0]].append(found.agrees)
            if not found.agrees:
                apart.append(pair)
        self._kept.add(apart)
        indices = [drift.index for drift in self._drift.values()]
        drifts = [index for index in indices if index is not None]
        return ShadowWindow(
            requests=len(requests),
            disagreed=sum(1.0 - sum(rows) / len(rows) for rows in requests.values()),
            rows=len(pairs),
            differed=len(apart),
            non_finite=sum(each.non_finite for each in compared),
            distance=max((each.distance for each in compared), default=0.0),
            lost=lost,
            psi=max(drifts, default=None),
            psi_rows=self._pairs,
        )

    def _learn(self, pairs: list[Pair]) -> None:
        """Add the pairs to the distributions and to the usual size of live's answers."""
        self._pairs += len(pairs)
        for pair in pairs:
            self._outputs.add(pair.live.answer)
        for pair in pairs:
            theirs = dict(statistics(pair.candidate.answer, self._outputs))
            for name, value in statistics(pair.live.answer, self._outputs):
                if name not in self._drift:
                    self._drift[name] = Drift(rows_needed(self._spec.max_psi))
                self._drift[name].add(value, theirs.get(name, "none"))
