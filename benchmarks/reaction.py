"""Seconds until no request reaches a bad candidate any more, as the proxy itself tells it.

A real deployment with small servers whose errors a file switches on, half of the traffic on
the candidate, one client. Counted from the moment the errors begin, from the first tick that
finds them, from the daemon's decision; and from an operator's request.
"""

from __future__ import annotations

import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from rich.table import Table

from rollout.client import deployments
from rollout.domain.ports import DataPlaneUnavailable, MeteredDataPlane
from rollout.domain.spec import RolloutSpec, Slot
from rollout.domain.state_machine import RolloutPhase
from rollout.drivers.local.ports import free_ports
from rollout.drivers.local.processes import members
from rollout.drivers.proxies import proxy_of
from rollout.journal import paths
from rollout.journal.journal import Journal
from tests.support.rollouts import Load, quick_settings, revision, wait_for_event
from tests.support.wait import wait_until

REPEATS = 5
SPEC = RolloutSpec(steps=(50, 100), step_seconds=600.0, max_error_rate=0.01, warmup_seconds=1.0)
MLCTL = (sys.executable, "-m", "cli.main")


@dataclass
class Shop:
    """A deployment whose candidate fails while the file `fault` exists."""

    port: int
    data_plane: MeteredDataPlane
    fault: Path

    def candidate_at_half(self) -> int:
        """Begin a rollout; return with half of the traffic on its candidate, looked at a while."""
        self.fault.unlink(missing_ok=True)
        tag = f"tiny:bb?fault={quote(str(self.fault))}"
        rollout = deployments.promote("shop", revision(tag), SPEC)
        wait_for_event("shop", rollout, lambda event: event.body.get("phase") == RolloutPhase.SHIFT)
        wait_for_event("shop", rollout, lambda event: event.body.get("judged") is True)
        return rollout

    def seconds_to_zero(self) -> float:
        """The moment at which the proxy says that nothing goes to the candidate."""
        wait_until(self._is_back, what="all traffic is on the live revision")
        return time.time()

    def _is_back(self) -> bool:
        try:
            weights = self.data_plane.weights()
        except DataPlaneUnavailable:
            return False
        return weights is not None and weights[Slot.GREEN] == 0

    def kill_candidate(self) -> None:
        with Journal(paths.journal()) as journal:
            process, _ = journal.processes("shop")["green/0"]
        for each in members(process.token):
            each.send_signal(signal.SIGKILL)


@contextmanager
def shop(folder: Path, tick_seconds: float) -> Iterator[Shop]:
    """A deployment under traffic, looked at every `tick_seconds`."""
    port = free_ports(1)[0]
    settings = replace(quick_settings(), tick_seconds=tick_seconds)
    deployment = deployments.up("shop", revision("tiny:aa"), port, settings=settings)
    try:
        proxy = proxy_of(paths.directory("shop"), deployment.ports, settings)
        with proxy.data_plane() as data_plane, Load(port, clients=1):
            yield Shop(port, data_plane, folder / "fault")
    finally:
        deployments.down("shop")


def table(folder: Path) -> Table:
    """Median and greatest of some repetitions, in seconds."""
    shown = Table(title=f"From the cause until no traffic is on the candidate, n = {REPEATS}")
    for name in ("Cause", "Tick s", "Counted from", "median s", "max s"):
        shown.add_column(name, justify="right" if name.endswith(" s") else "left")
    for tick in (1.0, 0.5):
        with shop(folder, tick) as made:
            for cause, run in CAUSES.items():
                found = [run(made) for _ in range(REPEATS)]
                for since in found[0]:
                    seconds = [each[since] for each in found]
                    shown.add_row(cause, f"{tick:g}", since, *_figures(seconds))
    return shown


def _figures(seconds: Sequence[float]) -> tuple[str, str]:
    return f"{statistics.median(seconds):.3f}", f"{max(seconds):.3f}"


def _errors(made: Shop) -> dict[str, float]:
    """All of the candidate's answers fail from one moment on."""
    rollout = made.candidate_at_half()
    begun = time.time()
    made.fault.touch()
    return {"the first error": made.seconds_to_zero() - begun, **_told(rollout)}


def _death(made: Shop) -> dict[str, float]:
    """The candidate is killed; its requests are retried on the live revision."""
    rollout = made.candidate_at_half()
    begun = time.time()
    made.kill_candidate()
    found = {"SIGKILL": made.seconds_to_zero() - begun}
    _ended(rollout)
    return found


def _by_hand(made: Shop) -> dict[str, float]:
    """`mlctl rollback`, from within a running Python and as a command."""
    return {
        "the request": _asked(made, lambda: deployments.rollback("shop", "by hand")),
        "the command's start": _asked(made, _command),
    }


def _command() -> None:
    subprocess.run([*MLCTL, "rollback", "shop"], check=True, stdout=subprocess.DEVNULL)


def _asked(made: Shop, ask: Callable[[], object]) -> float:
    rollout = made.candidate_at_half()
    begun = time.time()
    thread = threading.Thread(target=ask)
    thread.start()
    found = made.seconds_to_zero() - begun
    thread.join()
    _ended(rollout)
    return found


def _told(rollout: int) -> dict[str, float]:
    """What the record says of the time after the first bad tick, and after the decision."""
    _ended(rollout)
    events = deployments.events("shop", rollout=rollout)
    body = next(event.body for event in events if event.kind == "traffic_restored")
    return {
        "the first bad tick": body["seconds_since_first_bad"],
        "the decision": body["seconds_since_decision"],
    }


def _ended(rollout: int) -> None:
    wait_for_event("shop", rollout, lambda event: event.kind == "ended")


CAUSES = {"errors": _errors, "death": _death, "operator": _by_hand}
