"""Counts of both slots from the pods of a Service, or from plain addresses."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from mlctl.rollout.domain.interfaces import DataPlaneUnavailable
from mlctl.rollout.domain.spec import Slot
from mlctl.rollout.domain.traffic.counts import Reading, Totals
from mlctl.rollout.drivers.kubernetes.scrape import NOTHING, PodTally, read_totals

if TYPE_CHECKING:
    from mlctl.rollout.drivers.kubernetes.cluster import Cluster


@dataclass(frozen=True, slots=True)
class Scrape:
    """One observation of the servers of a slot, each by its uid: which exist, which should get
    traffic, and what those that answered have counted.
    """

    present: frozenset[str]
    ready: frozenset[str]
    totals: Mapping[str, Totals]


class PodCounts(Protocol):
    """A source of one slot's counts; DataPlaneUnavailable."""

    def scrape(self) -> Scrape: ...


class ServiceSource:
    """The pods of a Service; the cluster is opened at the first scrape."""

    def __init__(self, cluster: Callable[[], Cluster], service: str) -> None:
        self._cluster = cluster
        self._service = service

    def scrape(self) -> Scrape:
        pods = self._cluster().pods(self._service)
        answers = self._cluster().query(pods, "/metrics")
        texts = {
            uid: answer.text
            for uid, answer in answers.items()
            if answer is not None and answer.status_code == 200
        }
        ready = frozenset(pod.uid for pod in pods if pod.ready)
        return Scrape(frozenset(answers), ready, totals_of(texts))


def totals_of(texts: Mapping[str, str]) -> dict[str, Totals]:
    """Return the counters of each server; those with other counters are left out."""
    found: dict[str, Totals] = {}
    for uid, text in texts.items():
        with contextlib.suppress(ValueError):
            found[uid] = read_totals(text)
    return found


class SourceMeter:
    """A meter over one source per slot. Its totals only rise."""

    def __init__(self, sources: Mapping[Slot, PodCounts]) -> None:
        self._sources = dict(sources)
        self._tallies = {slot: PodTally() for slot in Slot}

    def read(self) -> Reading:
        """A slot is healthy while one of its ready servers reports its counts.

        DataPlaneUnavailable if there are some, and none of either slot does.
        """
        scrapes = {slot: source.scrape() for slot, source in self._sources.items()}
        ready = any(scrape.ready for scrape in scrapes.values())
        if ready and not any(scrape.totals for scrape in scrapes.values()):
            raise DataPlaneUnavailable("no server reports counts that this version can read")
        for slot, scrape in scrapes.items():
            self._tallies[slot].add(scrape.totals, scrape.present)
        return Reading(
            totals={slot: tally.total for slot, tally in self._tallies.items()},
            healthy={
                slot: not scrape.ready.isdisjoint(scrape.totals) for slot, scrape in scrapes.items()
            },
            # What is in flight is drained by the cluster, not by us.
            active=dict.fromkeys(Slot, 0),
            shadow=dict.fromkeys(Slot, NOTHING),
        )
