"""One rollout, one idempotent tick: re-assert, observe, judge, record.

Every handler may run again after a crash at any point: what it did is either in the journal
or is done again without harm. A decision is recorded before it is acted on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bundle.clock import Clock
from rollout import machine, records
from rollout.counts import Window
from rollout.gates import Action, Gate, Verdict
from rollout.journal import Journal, RollbackRequestedError
from rollout.machine import EXPOSED, Phase, Progress, Signal
from rollout.model import Colour, Settings
from rollout.observer import Observer
from rollout.ports import DataPlane, Launcher, Meter, PlaneRejected, Probe, Served
from rollout.processes import log_tail
from rollout.records import Rollout


@dataclass(frozen=True, slots=True)
class World:
    """What a controller acts on. `edges` are the meter's latency edges in milliseconds."""

    plane: DataPlane
    meter: Meter
    launcher: Launcher
    clock: Clock
    edges: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Watch:
    """A daemon's part: its epoch, its settings, and whether the champion's writing is settled."""

    epoch: int
    settings: Settings
    champion_settled: Callable[[], bool]


class Controller:
    """Carries one rollout to its end, tick by tick."""

    def __init__(self, rollout: Rollout, world: World, journal: Journal, watch: Watch) -> None:
        events = journal.events(rollout.deployment, rollout=rollout.id)
        self._rollout = replace(rollout, progress=records.with_evidence(rollout, events))
        self._world = world
        self._journal = journal
        self._settings = watch.settings
        self._epoch = watch.epoch
        self._champion_settled = watch.champion_settled
        self._observer = Observer(world.meter, world.edges, rollout.colour, rollout.spec)
        self._handlers = {
            Phase.PENDING: self._launch,
            Phase.WARM: self._warm,
            Phase.SHIFT: self._expose,
            Phase.BAKE: self._expose,
            Phase.FINALIZE: self._finalize,
            Phase.ROLLBACK: self._roll_back,
        }

    @property
    def rollout(self) -> Rollout:
        return self._rollout

    @property
    def progress(self) -> Progress:
        return self._rollout.progress

    def tick(self) -> Progress:
        """Do what the phase asks for once; nothing when DONE.

        PlaneUnavailable: nothing was decided, try again.
        """
        if self.progress.phase is Phase.DONE:
            return self.progress
        try:
            self._act()
        except RollbackRequestedError:  # it came while the last look was judged
            self._act()
        except PlaneRejected as error:
            if self.progress.phase not in machine.ABORTABLE:
                raise
            self._obey(Verdict(Action.ROLLBACK, Gate.CONFIG, str(error)))
        return self.progress

    def _act(self) -> None:
        reason = self._journal.rollback_reason(self._rollout.id)
        if reason is not None and self.progress.phase in machine.ABORTABLE:
            self._obey(Verdict(Action.ROLLBACK, Gate.OPERATOR, reason))
        else:
            self._handlers[self.progress.phase]()

    def resume(self, unwatched_seconds: float) -> None:
        """Go on after another daemon's death: roll back what nobody watched for too long."""
        phase, limit = self.progress.phase, self._settings.max_unwatched_seconds
        if phase in machine.ABORTABLE and unwatched_seconds > limit:
            why = f"nobody watched the rollout for {unwatched_seconds:.0f} s"
            self._obey(Verdict(Action.ROLLBACK, Gate.UNWATCHED, why, unwatched_seconds, limit))
            return
        self._save(
            replace(self.progress, since=self._now(), step_requests=0, step_ticks=0),
            "resumed",
            {"phase": phase, "unwatched_seconds": unwatched_seconds},
        )

    def _launch(self) -> None:
        self._apply()
        rollout = self._rollout
        try:
            served = self._world.launcher.start(rollout.colour, rollout.candidate)
        except OSError as error:
            why = f"the candidate could not be started: {error.strerror}"
            self._obey(Verdict(Action.ROLLBACK, Gate.READY, why))
            return
        body = records.served_body(served)
        self._journal.put_process(rollout.deployment, rollout.colour, served.process, body)
        self._save(machine.move(self.progress, Signal.LAUNCHED, self._now()), "phase")

    def _warm(self) -> None:
        self._apply()
        served = self._served(self._rollout.colour)
        probe = Probe.DEAD if served is None else self._world.launcher.probe(served)
        waited, limit = self._now() - self.progress.since, self._settings.ready_seconds
        if probe is Probe.READY and served is not None:
            self._world.plane.connect(self._rollout.colour, served.endpoint)
            if self._world.meter.read().healthy[self._rollout.colour]:
                signal = machine.next_signal(self.progress, self._rollout.spec)
                self._enter(machine.move(self.progress, signal, self._now()), None)
                return
        if probe in (Probe.DEAD, Probe.WRONG_MODEL) or waited > limit:
            why = f"{_WHY_NOT_READY[probe]}; its log ends:\n{_tail(served)}"
            self._obey(Verdict(Action.ROLLBACK, Gate.READY, why, waited, limit))

    def _expose(self) -> None:
        served = self._served(self._rollout.colour)
        self._assert_traffic(served)
        alive = served is not None and self._world.launcher.probe(served) is not Probe.DEAD
        look, reference = self._observer.look(alive=alive)
        now, spec = self._now(), self._rollout.spec
        judged = look.window is not None and not machine.warming_up(self.progress, spec, now)
        progress = machine.absorb(self.progress, look, spec, now)
        verdict = machine.judge(progress, look, spec, now)
        window = look.window or Window()
        body = {
            "judged": judged,
            "window": asdict(window),
            "reference_ms": reference,
            "verdict": asdict(verdict),
            "e_values": _e_values(progress, self._rollout),
        }
        self._save(progress, records.TICK, body)
        self._obey(verdict)

    def _finalize(self) -> None:
        self._apply()
        retired = self._retired(self._rollout.colour.other)
        if retired and self._champion_settled():
            self._end()

    def _roll_back(self) -> None:
        self._apply()
        self._mark_restored()
        live_serves = self._world.meter.read().healthy[self._rollout.colour.other]
        # A candidate that still works covers for a live revision that does not.
        if live_serves and self._retired(self._rollout.colour):
            self._end()

    def _mark_restored(self) -> None:
        progress, now = self.progress, self._now()
        if progress.restored is not None:
            return
        body = {
            "seconds_since_decision": now - progress.since,
            "seconds_since_exposure": _since(progress.exposed, now),
            "seconds_since_first_bad": _since(progress.first_bad, now),
        }
        self._save(replace(progress, restored=now), "traffic_restored", body)

    def _retired(self, colour: Colour) -> bool:
        """Drain and stop a colour, a little per tick; whether nothing of it is left."""
        served = self._served(colour)
        if served is None:
            return True
        self._world.plane.connect(colour, None)
        waited, limit = self._now() - self.progress.since, self._settings.drain_seconds
        if self._world.launcher.probe(served) is Probe.DEAD or waited > 2 * limit:
            self._world.launcher.stop(served, force=True)
            self._journal.drop_process(self._rollout.deployment, colour)
            return True
        if self._world.meter.read().active[colour] == 0 or waited > limit:
            self._world.launcher.stop(served)
        return False

    def _end(self) -> None:
        progress = machine.move(self.progress, Signal.SETTLED, self._now())
        body = records.ended_body(self._rollout, progress.planned, progress.ruling, self._now())
        self._save(progress, records.ENDED, body)

    def _obey(self, verdict: Verdict) -> None:
        progress = machine.obey(self.progress, verdict, self._rollout.spec, self._now())
        if progress is not self.progress:
            self._enter(progress, verdict)

    def _enter(self, progress: Progress, verdict: Verdict | None) -> None:
        """Record the move, then make its weights hold at once."""
        self._save(progress, "phase", {"verdict": asdict(verdict) if verdict else None})
        if progress.phase in EXPOSED:
            self._observer.start()
        if progress.phase is Phase.ROLLBACK:
            self._roll_back()
        else:
            self._apply()

    def _assert_traffic(self, served: Served | None) -> None:
        if served is not None:
            self._world.plane.connect(self._rollout.colour, served.endpoint)
        self._apply()

    def _apply(self) -> None:
        weight = machine.candidate_weight(self.progress, self._rollout.spec)
        colour = self._rollout.colour
        self._world.plane.apply({colour: weight, colour.other: 100 - weight})

    def _save(self, progress: Progress, kind: str, extra: dict[str, Any] | None = None) -> None:
        weight = machine.candidate_weight(progress, self._rollout.spec)
        where = {"phase": progress.phase, "step": progress.step, "weight": weight}
        self._journal.save(self._rollout, progress, kind, {**where, **(extra or {})}, self._epoch)
        self._rollout = replace(self._rollout, progress=progress)

    def _served(self, colour: Colour) -> Served | None:
        found = self._journal.processes(self._rollout.deployment).get(colour)
        return records.served_from(*found) if found else None

    def _now(self) -> float:
        return self._world.clock.wall()


_WHY_NOT_READY = {
    Probe.STARTING: "the candidate did not become ready in time",
    Probe.READY: "the proxy did not find the candidate healthy in time",
    Probe.WRONG_MODEL: "the candidate does not serve the digest that its Bento names",
    Probe.DEAD: "the candidate's process ended before it was ready",
}


def _tail(served: Served | None) -> str:
    return log_tail(Path(served.log)) if served else "(no log was written)"


def _since(start: float | None, now: float) -> float | None:
    return None if start is None else now - start


def _e_values(progress: Progress, rollout: Rollout) -> dict[str, float]:
    values = progress.evidence.log_values(rollout.spec)
    return {gate: math.exp(min(value, 700.0)) for gate, value in values.items()}
