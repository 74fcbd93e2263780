"""The replicas of a deployment's two colours: all that run one revision, under one name each.

The journal remembers every one ("blue/0", "blue/1"), so that whoever looks next finds them.
"""

from __future__ import annotations

from pathlib import Path

from rollout.domain.ports import Launcher, ProcessState, RunningRevision
from rollout.domain.spec import Endpoint, Revision, Slot, replica_role
from rollout.drivers.local.processes import log_tail
from rollout.journal import records
from rollout.journal.journal import Journal

# The state of a colour is the worst one of its replicas.
_WORST_FIRST = (ProcessState.DEAD, ProcessState.WRONG_MODEL, ProcessState.STARTING)


def replica_of(role: str) -> tuple[Slot, int] | None:
    """The inverse of `replica_role`; None for processes that are no replica."""
    colour, slash, index = role.partition("/")
    return (Slot(colour), int(index)) if slash else None


def replicas_of(journal: Journal, name: str, colour: Slot) -> dict[int, RunningRevision]:
    """The replicas of one colour that the journal remembers, by index, dead ones too."""
    found = {}
    for role, row in journal.processes(name).items():
        number = replica_of(role)
        if number is not None and number[0] is colour:
            found[number[1]] = records.served_from(*row)
    return dict(sorted(found.items()))


class Fleet:
    """The replicas of the deployment `name`."""

    def __init__(self, name: str, launcher: Launcher, journal: Journal) -> None:
        self._name = name
        self._launcher = launcher
        self._journal = journal

    def replicas(self, colour: Slot) -> dict[int, RunningRevision]:
        """The replicas of `colour` that are remembered, by index, dead ones too."""
        return replicas_of(self._journal, self._name, colour)

    def launch(self, colour: Slot, revision: Revision, count: int) -> None:
        """Start `count` replicas; strays of an earlier start are ended. OSError."""
        for index in range(count):
            self.start(colour, revision, index)

    def start(self, colour: Slot, revision: Revision, index: int) -> None:
        """Start one replica and remember it; does not wait. OSError if it cannot be started."""
        served = self._launcher.start(colour, revision, index)
        body = records.served_body(served)
        self._journal.put_process(self._name, replica_role(colour, index), served.process, body)

    def probe(self, colour: Slot) -> ProcessState:
        """The state of the worst replica: READY only if all are; DEAD if there is none."""
        found = {self._launcher.probe(served) for served in self.replicas(colour).values()}
        if not found:
            return ProcessState.DEAD
        return next((probe for probe in _WORST_FIRST if probe in found), ProcessState.READY)

    def gone(self, colour: Slot) -> bool:
        """Whether no replica of `colour` runs."""
        found = self.replicas(colour).values()
        return all(self._launcher.probe(served) is ProcessState.DEAD for served in found)

    def endpoints(self, colour: Slot) -> tuple[Endpoint, ...]:
        """Where the replicas of `colour` listen, ready or not."""
        return tuple(served.endpoint for served in self.replicas(colour).values())

    def stop(self, colour: Slot, *, force: bool = False) -> None:
        """Ask the replicas of `colour` to finish; with `force` end and forget them."""
        for index, served in self.replicas(colour).items():
            self._launcher.stop(served, force=force)
            if force:
                self.forget(colour, index)

    def forget(self, colour: Slot, index: int) -> None:
        """Remember the replica no longer."""
        self._journal.drop_process(self._name, replica_role(colour, index))

    def tail(self, colour: Slot) -> str:
        """Return the end of the worst replica's log: the one whose state is the colour's."""
        worst = self.probe(colour)
        for served in self.replicas(colour).values():
            if self._launcher.probe(served) is worst:
                return log_tail(Path(served.log))
        return "(no log was written)"
