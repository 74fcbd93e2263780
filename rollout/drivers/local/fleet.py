"""The replicas of a deployment's two slots: all that run one revision, under one name each.

The journal remembers every one ("blue/0", "blue/1"), so that the next daemon finds them.
"""

from __future__ import annotations

from pathlib import Path

from mlctl.rollout.domain.interfaces import Launcher, ProcessState, RunningRevision
from mlctl.rollout.domain.spec import Endpoint, Revision, Slot, replica_role
from mlctl.rollout.drivers.local.processes import log_tail
from mlctl.rollout.journal import records
from mlctl.rollout.journal.journal import Journal

# The state of a slot is the worst one of its replicas.
_WORST_FIRST = (ProcessState.DEAD, ProcessState.WRONG_MODEL, ProcessState.STARTING)


def replica_of(role: str) -> tuple[Slot, int] | None:
    """The inverse of `replica_role`; None for processes that are no replica."""
    slot, slash, index = role.partition("/")
    return (Slot(slot), int(index)) if slash else None


def replicas_of(journal: Journal, name: str, slot: Slot) -> dict[int, RunningRevision]:
    """The replicas of one slot that the journal remembers, by index, dead ones too."""
    found = {}
    for role, row in journal.processes(name).items():
        number = replica_of(role)
        if number is not None and number[0] is slot:
            found[number[1]] = records.served_from(*row)
    return dict(sorted(found.items()))


class Fleet:
    """The replicas of the deployment `name`."""

    def __init__(self, name: str, launcher: Launcher, journal: Journal) -> None:
        self._name = name
        self._launcher = launcher
        self._journal = journal

    def replicas(self, slot: Slot) -> dict[int, RunningRevision]:
        """The replicas of `slot` that are remembered, by index, dead ones too."""
        return replicas_of(self._journal, self._name, slot)

    def launch(self, slot: Slot, revision: Revision, count: int) -> None:
        """Start `count` replicas; strays of an earlier start are ended. OSError."""
        for index in range(count):
            self.start(slot, revision, index)

    def start(self, slot: Slot, revision: Revision, index: int) -> None:
        """Start one replica and remember it; does not wait. OSError if it cannot be started."""
        served = self._launcher.start(slot, revision, index)
        body = records.served_body(served)
        self._journal.put_process(self._name, replica_role(slot, index), served.process, body)

    def kill(self, slot: Slot) -> None:
        """End the replicas of `slot` at once, with the requests that they have."""
        for served in self.replicas(slot).values():
            self._launcher.stop(served, force=True)

    def probe(self, slot: Slot) -> ProcessState:
        """The state of the worst replica: READY only if all are; DEAD if there is none."""
        found = {self._launcher.probe(served) for served in self.replicas(slot).values()}
        if not found:
            return ProcessState.DEAD
        return next((probe for probe in _WORST_FIRST if probe in found), ProcessState.READY)

    def endpoints(self, slot: Slot) -> tuple[Endpoint, ...]:
        """Where the replicas of `slot` listen, ready or not."""
        return tuple(served.endpoint for served in self.replicas(slot).values())

    def tail(self, slot: Slot) -> str:
        """Return the end of the worst replica's log: the one whose state is the slot's."""
        worst = self.probe(slot)
        for served in self.replicas(slot).values():
            if self._launcher.probe(served) is worst:
                return log_tail(Path(served.log))
        return "(no log was written)"
