"""What was in production when, read from the journal's events. Pure.

A revision is live from `up`, or from the moment in which its rollout was recorded as proved,
until the next one or until `down`. While a rollout was under way its candidate had a share.
Ticks change nothing of that: the events may come without them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from mlctl.rollout.domain.machine.state_machine import RolloutPhase
from mlctl.rollout.journal.records import ENDED, JournalEvent, Rollout


@dataclass(frozen=True, slots=True)
class Interval:
    """One revision's time as the live one: wall-clock seconds, `end` None while it lasts.

    `rollout` is the one that made it live, None if `up` started with it.
    """

    bento: str
    digest: str
    start: float
    end: float | None = None
    rollout: int | None = None

    def covers(self, moment: float) -> bool:
        return self.start <= moment and (self.end is None or moment < self.end)


@dataclass(frozen=True, slots=True)
class Share:
    """A candidate and its percent of the traffic at a moment, in its rollout's phase."""

    rollout: int
    bento: str
    digest: str
    weight: int
    phase: str


@dataclass(frozen=True, slots=True)
class Moment:
    """What was in production at one moment; `live` is None while nothing was up."""

    live: Interval | None
    candidate: Share | None


def intervals(events: Iterable[JournalEvent], rollouts: Iterable[Rollout]) -> tuple[Interval, ...]:
    """When each revision was live, oldest first."""
    by_id = {rollout.id: rollout for rollout in rollouts}
    found: list[Interval] = []
    for event in events:
        begun = _begun(event, by_id)
        if (begun is not None or event.kind == "down") and found and found[-1].end is None:
            found[-1] = replace(found[-1], end=event.at)
        if begun is not None:
            found.append(begun)
    return tuple(found)


def at(moment: float, events: Iterable[JournalEvent], rollouts: Iterable[Rollout]) -> Moment:
    """What was in production at `moment`, in wall-clock seconds."""
    recorded, listed = tuple(events), tuple(rollouts)
    live = next((each for each in intervals(recorded, listed) if each.covers(moment)), None)
    return Moment(live, None if live is None else _share(moment, recorded, listed))


def _begun(event: JournalEvent, rollouts: Mapping[int, Rollout]) -> Interval | None:
    if event.kind == "up":
        return Interval(event.body["revision"], event.body["digest"], event.at)
    proved = event.kind == "phase" and event.body["phase"] == RolloutPhase.FINALIZE
    if not proved or event.rollout is None:
        return None
    candidate = rollouts[event.rollout].candidate
    return Interval(candidate.bento, candidate.digest, event.at, rollout=event.rollout)


def _share(
    moment: float, events: Iterable[JournalEvent], rollouts: Iterable[Rollout]
) -> Share | None:
    """The candidate of the rollout that was under way, by the last event with its weight."""
    before = [event for event in events if event.rollout is not None and event.at <= moment]
    last = before[-1] if before else None
    if last is None or last.kind == ENDED:
        return None
    weighted = [each for each in before if each.rollout == last.rollout and "weight" in each.body]
    if not weighted or weighted[-1].body["phase"] in (RolloutPhase.FINALIZE, RolloutPhase.DONE):
        return None
    rollout = next(each for each in rollouts if each.id == last.rollout)
    body, candidate = weighted[-1].body, rollout.candidate
    return Share(rollout.id, candidate.bento, candidate.digest, body["weight"], body["phase"])
