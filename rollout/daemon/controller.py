"""One rollout, one idempotent tick: re-assert, observe, judge, record.

Every handler may run again after a crash at any point: what it did is either in the journal
or is done again without harm. A decision is recorded before it is acted on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from mlctl.rollout.daemon.context import DaemonContext
from mlctl.rollout.daemon.shadow.comparison import ShadowComparison
from mlctl.rollout.domain.interfaces import (
    DataPlaneRejected,
    ProcessState,
    TrafficSplit,
)
from mlctl.rollout.domain.machine import state_machine as machine
from mlctl.rollout.domain.machine.evidence import GateEvidence, begin
from mlctl.rollout.domain.machine.observer import TrafficObserver
from mlctl.rollout.domain.machine.state_machine import (
    WATCHED,
    RolloutPhase,
    RolloutProgress,
    Signal,
    TickObservation,
)
from mlctl.rollout.domain.operator_commands import OperatorRequest, next_request
from mlctl.rollout.domain.shadow.join import AnswerSide
from mlctl.rollout.domain.spec import Slot
from mlctl.rollout.domain.statistics.verdict import Action, Gate, Hits, HoldReason, Verdict
from mlctl.rollout.domain.traffic.counts import Window
from mlctl.rollout.journal import records
from mlctl.rollout.journal.journal import RequestWaitsError
from mlctl.rollout.journal.records import Rollout


class Controller:
    """Carries one rollout to its end, tick by tick."""

    def __init__(self, rollout: Rollout, context: DaemonContext) -> None:
        self._no_shadow = _why_no_shadow(rollout, context)
        if self._no_shadow:
            rollout = replace(rollout, spec=rollout.spec.without_shadow())
        self._rollout = rollout
        self._context = context
        self._journal = context.journal
        self._settings = context.settings
        self._counting_since: float | None = None
        self._idle_reported: float | None = None
        self._fleet = context.fleet
        self._comparison = _comparison(rollout, context)
        self._observer = TrafficObserver(
            context.meter,
            context.edges,
            rollout.slot,
            rollout.spec,
            None if self._comparison is None else self._comparison.observe,
            context.record.total,
        )
        if context.recording is not None:
            judged = rollout.spec.min_accuracy is not None
            context.recording.keep = judged or context.settings.record_share > 0
        self._handlers = {
            RolloutPhase.PENDING: self._launch,
            RolloutPhase.WARM: self._warm,
            RolloutPhase.SHADOW: self._watch,
            RolloutPhase.SHIFT: self._watch,
            RolloutPhase.BAKE: self._watch,
            RolloutPhase.PAUSED: self._pause,
            RolloutPhase.FINALIZE: self._finalize,
            RolloutPhase.ROLLBACK: self._roll_back,
        }

    @property
    def rollout(self) -> Rollout:
        return self._rollout

    @property
    def progress(self) -> RolloutProgress:
        return self._rollout.progress

    def tick(self) -> RolloutProgress:
        """Carry out the phase once; nothing when DONE.

        DataPlaneUnavailable: nothing was decided, try again.
        """
        if self.progress.phase is RolloutPhase.DONE:
            return self.progress
        try:
            self._act()
        except RequestWaitsError:  # it came while the last tick was judged
            self._act()
        except DataPlaneRejected as error:
            if self.progress.phase not in machine.REVERSIBLE:
                raise
            self._apply_verdict(Verdict(Action.ROLLBACK, HoldReason.CONFIG, str(error)))
        return self.progress

    def _act(self) -> None:
        if self.progress.phase not in machine.REVERSIBLE or not self._apply_command():
            self._handlers[self.progress.phase]()

    def _apply_command(self) -> bool:
        """Apply the next operator's command; return whether there was one."""
        waiting = self._journal.requests(self._rollout.id)
        request = next_request(waiting, self.progress.applied)
        if request is None:
            return False
        applied = machine.apply_command(
            self.progress, request, self._rollout.spec, self._context.now()
        )
        if applied is None:
            return False
        self._enter(applied, _ruling(applied, request), command=request.command)
        return True

    def resume(self, unwatched_seconds: float) -> None:
        """Continue after another daemon's death; roll back a rollout unwatched for too long."""
        phase, limit = self.progress.phase, self._settings.max_unwatched_seconds
        judged = phase in machine.REVERSIBLE and self._rollout.reverts is None
        if judged and unwatched_seconds > limit:
            why = f"no daemon watched the rollout for {unwatched_seconds:.0f} s"
            self._apply_verdict(
                Verdict(Action.ROLLBACK, HoldReason.UNWATCHED, why, unwatched_seconds, limit)
            )
            return
        self._save(
            replace(self.progress, since=self._context.now(), step_requests=0, step_ticks=0),
            "resumed",
            {"phase": phase, "unwatched_seconds": unwatched_seconds},
        )

    def _launch(self) -> None:
        """Start the candidate once its slot is empty, or take over what is kept running there.

        What a killed daemon started for this rollout is started again, for it may lack replicas.
        """
        self._apply()
        rollout = self._rollout
        reverts = rollout.reverts is not None
        warm = self._kept_warm()
        found = self._fleet.replicas(rollout.slot).values()
        # Replicas of an earlier rollout are being stopped, those of the same revision too.
        if not (reverts or warm) and any(each.process.started < rollout.created for each in found):
            return
        cold = not warm or self._fleet.probe(rollout.slot) is ProcessState.DEAD
        try:
            if cold:
                self._fleet.launch(rollout.slot, rollout.candidate, self._replicas())
        except OSError as error:
            why = f"the candidate could not be started: {error.strerror}"
            self._apply_verdict(Verdict(Action.ROLLBACK, Gate.READY, why))
            return
        launched = machine.move(self.progress, Signal.LAUNCHED, self._context.now())
        self._save(launched, "phase", {"cold": True} if reverts and cold else None)
        if reverts:
            self._warm()

    def _kept_warm(self) -> bool:
        """Whether the candidate runs: the previous revision, or the other one of a split."""
        deployment = self._journal.deployment(self._rollout.deployment)
        if deployment.split is not None:
            return True
        previous = deployment.previous
        reverts = self._rollout.reverts is not None
        return reverts and previous is not None and previous.warm_until > 0

    def _warm(self) -> None:
        self._apply()
        probe = self._fleet.probe(self._rollout.slot)
        waited, limit = self._context.now() - self.progress.since, self._settings.ready_seconds
        if probe is ProcessState.READY:
            self._connect()
            if self._context.meter.read().healthy[self._rollout.slot]:
                self._begin() if self._rollout.reverts is None else self._restore()
                return
        if probe in (ProcessState.DEAD, ProcessState.WRONG_MODEL) or waited > limit:
            why = self._why_not_ready(probe)
            self._apply_verdict(Verdict(Action.ROLLBACK, Gate.READY, why, waited, limit))

    def _why_not_ready(self, probe: ProcessState) -> str:
        tail = self._fleet.tail(self._rollout.slot)
        return f"{_WHY_NOT_READY[probe]}; its log ends:\n{tail}"

    def _begin(self) -> None:
        """Leave WARM; the event says why the comparison of answers is skipped, if it is."""
        spec = self._rollout.spec
        progress = machine.warmed(self.progress, spec, self._context.now())
        evidence = begin(self._context.record.counts(spec, self._context.edges), spec)
        progress = replace(progress, evidence=evidence)
        skipped = self._no_shadow
        if spec.shadow_percent and progress.override:
            skipped = "an operator skips the gates"
        self._enter(progress, None, **({"shadow_skipped": skipped} if skipped else {}))

    def _restore(self) -> None:
        """Return all traffic to the previous version, now that it serves."""
        why = f"rollout {self._rollout.reverts} is taken back"
        progress = machine.restored(self.progress, why, self._context.now())
        self._enter(progress, progress.ruling)

    def _watch(self) -> None:
        self._connect()
        self._apply()
        if not self._due():
            return
        # One replica that ended by itself is enough: a candidate is not started again.
        probe = self._fleet.probe(self._rollout.slot)
        if probe is ProcessState.WRONG_MODEL:  # its owner may replace the pods in a cluster
            self._apply_verdict(Verdict(Action.ROLLBACK, Gate.HEALTH, self._why_not_ready(probe)))
            return
        alive = probe is not ProcessState.DEAD
        weight = machine.candidate_weight(self.progress, self._rollout.spec)
        mirrored = machine.mirrored_share(self.progress, self._rollout.spec) > 0
        counted_until = self._context.clock.monotonic()
        seconds = self._settings.tick_seconds
        if self._counting_since is not None:
            seconds = max(seconds, counted_until - self._counting_since)
        observation, reference = self._observer.observe(
            alive=alive, mirrored=mirrored, weight=weight, seconds=seconds
        )
        self._counting_since = counted_until
        observation = self._labelled(self._weighed(observation), mirrored=mirrored)
        now, spec = self._context.now(), self._rollout.spec
        judged = observation.window is not None and not machine.warming_up(self.progress, spec, now)
        progress = machine.absorb(self.progress, observation, spec, now)
        verdict = machine.judge(progress, observation, spec, now)
        body = {
            "judged": judged,
            "window": asdict(observation.window or Window()),
            "shadow": asdict(observation.shadow) if observation.shadow else None,
            "compared": progress.evidence.shadow.hits,
            "labelled": _labelled_hits(progress.evidence) if spec.min_accuracy else None,
            "reference_ms": reference,
            "verdict": asdict(verdict),
            "e_values": _e_values(progress.evidence.log_values(spec)),
            "proofs": _e_values(progress.evidence.proof_values(spec)),
            "latencies": self._observer.latencies(),
        }
        self._save(progress, records.TICK, body)
        self._report_idle()
        self._apply_verdict(verdict)

    def _report_idle(self) -> None:
        """Record one `no_traffic` event for each time without requests."""
        since = self.progress.idle_since
        if since != self._idle_reported and (
            why := machine.no_traffic(self.progress, self._context.now())
        ):
            self._idle_reported = since
            self._context.append("no_traffic", {"why": why}, self._rollout.id)

    def _due(self) -> bool:
        """Whether a tick has passed since the last evaluation.

        A daemon is woken in between, by an operator. Each evaluation is a bet of its own: if they
        came faster than the ticks, one short stall would count as many.
        """
        since, tick = self._counting_since, self._settings.tick_seconds
        return since is None or self._context.clock.monotonic() - since >= tick

    def _weighed(self, observation: TickObservation) -> TickObservation:
        """Return the observation, marked if the candidate's share was large enough for a proof."""
        if observation.window is None:
            return observation
        spec = self._rollout.spec
        enough = spec.representative(machine.candidate_weight(self.progress, spec))
        return replace(observation, window=replace(observation.window, representative=enough))

    def _labelled(self, observation: TickObservation, *, mirrored: bool) -> TickObservation:
        """Return the observation with the labelled answers, if any are new; keep recording."""
        recording, rollout = self._context.recording, self._rollout
        if recording is None or not recording.keep:
            return observation
        judged = rollout.spec.min_accuracy is not None
        if not mirrored:  # else the comparison has done it
            window = observation.window or Window()
            requests = window.candidate.total + window.live.total
            share = 1.0 if judged else self._settings.record_share
            recording.observe(requests, inputs=False, max_share=share)
        if not judged:
            return observation
        digests = (rollout.candidate.recorded, rollout.live.recorded)
        return replace(observation, labelled=recording.labelled(*digests, rollout.spec))

    def _pause(self) -> None:
        if self.progress.stage in WATCHED:
            self._watch()
        else:
            self._apply()

    def _finalize(self) -> None:
        self._apply()
        if self._rollout.reverts is not None:
            self._mark_restored(self._rollout.created)
        self._end()

    def _roll_back(self) -> None:
        self._apply()
        self._mark_restored(self.progress.since)
        healthy = self._context.meter.read().healthy
        if self._is_unresponsive(healthy):
            # It would hold the requests that it has until the drain is over.
            self._fleet.kill(self._rollout.slot)
        # A candidate that still works covers for a live revision that does not.
        if healthy[self._rollout.slot.other]:
            self._end()

    def _is_unresponsive(self, healthy: Mapping[Slot, bool]) -> bool:
        """Whether the rollout ends because no replica of the candidate answers health checks."""
        ruling, slot = self.progress.ruling, self._rollout.slot
        return ruling is not None and ruling.gate is Gate.HEALTH and not healthy[slot]

    def _mark_restored(self, decided: float) -> None:
        """Record that the traffic is back, and how long after the decision."""
        progress, now = self.progress, self._context.now()
        if progress.restored is not None:
            return
        # A bad tick of long ago has nothing to do with a rollback that an operator wants.
        judged = progress.ruling is not None and isinstance(progress.ruling.gate, Gate)
        body = {
            "seconds_since_decision": now - decided,
            "seconds_since_exposure": _since(progress.exposed, now),
            "seconds_since_first_bad": _since(progress.first_bad, now) if judged else None,
        }
        self._save(replace(progress, restored=now), "traffic_restored", body)

    def _end(self) -> None:
        if self._context.recording is not None:
            self._context.recording.stop()
        progress = machine.move(self.progress, Signal.SETTLED, self._context.now())
        body = records.ended_body(
            self._rollout, progress.planned, progress.ruling, self._context.now()
        )
        kept = None if self._comparison is None else self._comparison.kept()
        self._save(progress, records.ENDED, {**body, "disagreements": kept})

    def _apply_verdict(self, verdict: Verdict) -> None:
        progress = machine.apply_verdict(
            self.progress, verdict, self._rollout.spec, self._context.now()
        )
        if progress is not self.progress:
            self._enter(progress, verdict)

    def _enter(self, progress: RolloutProgress, verdict: Verdict | None, **extra: str) -> None:
        """Record the move, then make its weights hold at once."""
        ruling = asdict(verdict) if verdict else None
        self._save(progress, "phase", {"verdict": ruling, **extra})
        if progress.stage in WATCHED:
            self._observer.start()
            self._counting_since = self._counting_since or self._context.clock.monotonic()
        match progress.phase:
            case RolloutPhase.ROLLBACK:
                self._roll_back()
            case RolloutPhase.FINALIZE:
                self._finalize()
            case _:
                self._apply()
        recording = self._context.recording
        mirrored = machine.mirrored_share(progress, self._rollout.spec) > 0
        if recording is not None and not (mirrored or recording.keep):
            recording.stop()

    def _connect(self) -> None:
        slot = self._rollout.slot
        if endpoints := self._fleet.endpoints(slot):
            self._context.data_plane.connect(slot, endpoints)

    def _apply(self) -> None:
        progress, spec, slot = self.progress, self._rollout.spec, self._rollout.slot
        weight = machine.candidate_weight(progress, spec)
        mirror = machine.mirrored_share(progress, spec)
        serves = progress.stage in WATCHED
        traffic = TrafficSplit(
            {slot: weight, slot.other: 100 - weight},
            mirror=mirror,
            mirror_to=slot if mirror else None,
            testers=slot if serves else None,
            sticky=spec.sticky,
        )
        self._context.data_plane.apply(traffic)

    def _save(
        self, progress: RolloutProgress, kind: str, extra: dict[str, Any] | None = None
    ) -> None:
        weight = machine.candidate_weight(progress, self._rollout.spec)
        where = {"phase": progress.phase, "step": progress.step, "weight": weight}
        self._journal.save(
            self._rollout, progress, kind, {**where, **(extra or {})}, self._context.epoch
        )
        self._rollout = replace(self._rollout, progress=progress)

    def _replicas(self) -> int:
        """Return the live slot's number: a candidate is judged at the size that it will have."""
        return max(1, self._journal.deployment(self._rollout.deployment).settings.replicas)


_WHY_NOT_READY = {
    ProcessState.STARTING: "the candidate did not become ready in time",
    ProcessState.READY: "the proxy did not find the candidate healthy in time",
    ProcessState.WRONG_MODEL: "the candidate does not serve the digest that its Bento names",
    ProcessState.DEAD: "the candidate's process ended before it was ready",
}


def _ruling(progress: RolloutProgress, request: OperatorRequest) -> Verdict | None:
    return progress.ruling if request.command.final else None


def _since(start: float | None, now: float) -> float | None:
    return None if start is None else now - start


def _why_no_shadow(rollout: Rollout, context: DaemonContext) -> str:
    """Return why a rollout with a shadow gets none; empty if it gets one or needs none."""
    if not rollout.spec.shadows:
        return ""
    if not context.data_plane.can_mirror:
        return "the proxy cannot copy requests"
    if context.recording is None and rollout.spec.shadow_wait_seconds is not None:
        return "the servers cannot record answers for this rollout: MLCTL_SAMPLE_DIR is set"
    return ""


def _comparison(rollout: Rollout, context: DaemonContext) -> ShadowComparison | None:
    """Return what compares the two revisions' answers, None where servers cannot record."""
    if context.recording is None or not rollout.spec.shadows:
        return None
    sides = {
        rollout.slot.other: (AnswerSide.LIVE, rollout.live.recorded),
        rollout.slot: (AnswerSide.CANDIDATE, rollout.candidate.recorded),
    }
    return ShadowComparison(context.recording, sides, rollout.spec, rollout.id, context.clock)


def _labelled_hits(evidence: GateEvidence) -> dict[str, Hits]:
    """Return (wrong, labelled) requests of both revisions."""
    counted = evidence.of(Gate.ACCURACY_VS_LIMIT)
    sides = {"candidate": counted.ours, "live": counted.theirs}
    return {side: (trials.hits, trials.n) for side, trials in sides.items()}


def _e_values(logs: Mapping[Gate, float]) -> dict[str, float]:
    return {gate: math.exp(min(value, 700.0)) for gate, value in logs.items()}
