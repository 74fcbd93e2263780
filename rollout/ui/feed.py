"""The page of one deployment, read from the journal again and again, for browser and terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator

from mlctl.core.clock import Clock, SystemClock
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.rollout.client.lifecycle import ensure_daemon
from mlctl.rollout.journal import paths
from mlctl.rollout.journal.journal import Journal
from mlctl.rollout.ui.view import Page, RolloutRecord, deployment_page

REDRAW_SECONDS = 1.0
_EVENTS = 2000


class Feed:
    """The page of one deployment, read from the journal again and again.

    `chosen` is the rollout to show; None for the one under way, or else the newest.
    """

    def __init__(self, name: str, chosen: int | None, clock: Clock) -> None:
        self.chosen = chosen
        self._clock = clock
        self._name = name
        self._record: RolloutRecord | None = None

    def read(self) -> Page:
        """Return the page as it is now; DEPLOYMENT_NOT_FOUND, or NOT_FOUND without that rollout."""
        with Journal(paths.journal()) as journal:
            deployment = journal.deployment(self._name)
            rollouts = journal.rollouts(self._name)
            shown = next((each for each in rollouts if self.chosen in (None, each.id)), None)
            if shown is None and self.chosen is not None:
                raise MlctlError(
                    ErrorCode.NOT_FOUND, f"{self._name!r} has no rollout {self.chosen}"
                )
            if shown is not None:
                if self._record is None or self._record.rollout != shown.id:
                    self._record = RolloutRecord(shown)
                record = self._record
                while events := journal.events(self._name, record.seq, shown.id, limit=_EVENTS):
                    record.add(events)
        return deployment_page(deployment, rollouts, self._record, self._clock.wall())


def watch(name: str) -> Iterator[Page]:
    """Yield the page of deployment `name` every second until a rollout has ended.

    Like every client it has a dead daemon replaced. DEPLOYMENT_NOT_FOUND once it is taken down.
    """
    feed, active = Feed(name, None, SystemClock()), False
    while True:
        with Journal(paths.journal()) as journal:
            journal.live_deployment(name)
            ensure_daemon(journal, name)
        page = feed.read()
        yield page
        ended = page.rollout is None or page.rollout.outcome is not None
        if active and ended:
            return
        active = not ended
        time.sleep(REDRAW_SECONDS)
