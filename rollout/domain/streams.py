"""The candidate's answers to a stream beside the live ones: paired by the position of the source.

Both have read the same messages, each as a group of its own, so all pairs come at once; they
are judged as those of requests are. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from rollout.domain import agreement
from rollout.domain.agreement import ShadowEvidence
from rollout.domain.compare import Answer, Compared, LiveOutputs, compare, statistics
from rollout.domain.drift import Drift, rows_needed
from rollout.domain.shadow_window import ShadowWindow
from rollout.domain.spec import RolloutSpec
from rollout.domain.verdict import Action, Gate, Verdict

# So many messages are one tick.
_WINDOW = 50
_NONE = Compared(agrees=False, distance=1.0)


@dataclass(frozen=True, slots=True)
class StreamsCompared:
    """The verdict on the candidate, what it is based on, and the first sources that differ.

    `left_out` are outputs that only one of them has: nothing is judged by them.
    """

    verdict: Verdict
    window: ShadowWindow
    differing: Sequence[str]
    left_out: Sequence[str] = ()


def judge_streams(
    live: Mapping[str, Answer | None],
    candidate: Mapping[str, Answer | None],
    spec: RolloutSpec,
    max_differing: int = 10,
) -> StreamsCompared:
    """Compare the answers to each source that both have met; None is a dead letter.

    A message that live answers and the candidate does not disagrees; one that live does not
    answer is no pair. Compared is what both have, since answers may keep fields of their source;
    those with nothing in common disagree. At most `max_differing` differing sources are named.
    """
    judge = _Judge(spec, {source: each for source, each in live.items() if each is not None})
    pairs = iter([source for source in candidate if live.get(source) is not None])
    while sources := [*islice(pairs, _WINDOW)]:
        judge.observe(sources, candidate)
    window = judge.evidence.total
    return StreamsCompared(
        judge.verdict(), window, judge.differing[:max_differing], sorted(judge.left_out)
    )


class _Judge:
    def __init__(self, spec: RolloutSpec, live: Mapping[str, Answer]) -> None:
        self.evidence = ShadowEvidence()
        self.differing: list[str] = []
        self.left_out: set[str] = set()
        self._spec = spec
        self._live = live
        self._drift: dict[str, Drift] = {}
        self._pairs = 0
        self._outputs = LiveOutputs()
        for answer in live.values():
            self._outputs.add(answer)
        self._stopped: Verdict | None = None

    def observe(self, sources: Sequence[str], candidate: Mapping[str, Answer | None]) -> None:
        """Fold some pairs in; what has shown a fault stays shown."""
        found = {source: self._compared(source, candidate[source]) for source in sources}
        apart = [source for source, each in found.items() if not each.agrees]
        self.differing += apart
        self._pairs += len(found)
        indices = [each for drift in self._drift.values() if (each := drift.index) is not None]
        window = ShadowWindow(
            requests=len(found),
            disagreed=len(apart),
            rows=len(found),
            differed=len(apart),
            non_finite=sum(each.non_finite for each in found.values()),
            distance=max(each.distance for each in found.values()),
            psi=max(indices, default=None),
            psi_rows=self._pairs,
            seconds=self._spec.burst_seconds,  # each part of the messages is a block
        )
        self.evidence = agreement.fold(self.evidence, window, self._spec)
        limit = self._spec.max_disagreement
        shown = limit is not None and agreement.log_harm(self.evidence, limit) >= self._threshold
        if self._stopped is None and shown:
            self._stopped = agreement.disagrees(self.evidence, self._spec)

    def verdict(self) -> Verdict:
        """ADVANCE if nothing speaks against it."""
        total = self.evidence.total
        found = (
            agreement.broken(self.evidence)
            or self._stopped
            or agreement.doubtful(self.evidence, self._spec)
            or agreement.unproved(self.evidence, self._spec)
        )
        why = f"{total.differed} of {total.requests} messages are answered otherwise"
        return found or Verdict(Action.ADVANCE, Gate.DISAGREEMENT, why, n=total.requests)

    @property
    def _threshold(self) -> float:
        return math.log(1.0 / self._spec.alpha)

    def _compared(self, source: str, theirs: Answer | None) -> Compared:
        ours = self._live[source]
        if theirs is not None:
            self.left_out |= ours.keys() ^ theirs.keys()
            ours = {name: ours[name] for name in ours.keys() & theirs.keys()}
            theirs = {name: theirs[name] for name in ours}
        answers = dict(statistics(theirs, self._outputs)) if theirs is not None else {}
        for name, value in statistics(ours, self._outputs):
            if name not in self._drift:
                self._drift[name] = Drift(rows_needed(self._spec.max_psi))
            self._drift[name].add(value, answers.get(name, "none"))
        if theirs is None or not ours:
            return _NONE
        return compare(ours, theirs, self._spec.tolerance, self._outputs)
