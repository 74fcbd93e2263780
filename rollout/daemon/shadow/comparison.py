"""Compare what both slots recorded of the same requests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from mlctl.core.clock import Clock
from mlctl.rollout.daemon.recording import Recording
from mlctl.rollout.daemon.shadow.disagreements import Disagreements
from mlctl.rollout.domain.shadow.agreement import ShadowWindow
from mlctl.rollout.domain.shadow.compare import LiveOutputs, compare, statistics
from mlctl.rollout.domain.shadow.join import AnswerSide, Joiner, Pair
from mlctl.rollout.domain.spec import RolloutSpec, Slot
from mlctl.rollout.domain.statistics.drift import Drift, rows_needed

_GRACE_SECONDS = 15.0
_MAX_WAITING = 20_000


class ShadowComparison:
    """Compares the two revisions of one rollout while copies of requests reach the candidate.

    `sides` says whose answers each slot records, and which digests they have.
    """

    def __init__(
        self,
        recording: Recording,
        sides: Mapping[Slot, tuple[AnswerSide, frozenset[str]]],
        spec: RolloutSpec,
        rollout: int,
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._recording = recording
        self._sides = sides
        self._spec = spec
        self._joiner = Joiner(_GRACE_SECONDS, _MAX_WAITING)
        self._drift: dict[str, Drift] = {}
        self._outputs = LiveOutputs()
        self._pairs = 0
        self._kept = Disagreements(recording.folder.disagreements(rollout))

    def observe(self, live_requests: int) -> ShadowWindow:
        """What came since the tick before, and see to it that recording goes on.

        `live_requests` came in that time.
        """
        now = self._clock.wall()
        recorded = self._recording.observe(live_requests, inputs=True)
        pairs = [
            pair
            for slot, (side, digests) in self._sides.items()
            for pair in self._joiner.join(
                side,
                (row for row in recorded[slot] if row.digest in digests and row.answer),
                now,
            )
        ]
        return self._judged(pairs, self._joiner.expire(now))

    def kept(self) -> str | None:
        """The path of the rows that were answered differently; None if there are none."""
        return str(self._kept.path) if self._kept.path.exists() else None

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
