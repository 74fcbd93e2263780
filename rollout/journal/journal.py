"""The record of deployments and rollouts: settings, progress, decisions.

Every change is one transaction. A daemon's changes carry its epoch, a number from one global
counter; after a takeover the former daemon's are rejected (`StaleEpochError`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from mlctl.core.clock import Clock, SystemClock
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.rollout.domain.machine.state_machine import REVERSIBLE, RolloutPhase, RolloutProgress
from mlctl.rollout.domain.operator_commands import OperatorCommand, OperatorRequest, next_request
from mlctl.rollout.domain.process_ref import ProcessRef
from mlctl.rollout.domain.spec import (
    DeploymentSettings,
    Outcome,
    Ports,
    PreviousRevision,
    Revision,
    RolloutSpec,
    Slot,
)
from mlctl.rollout.domain.statistics.verdict import Action, HoldReason, Verdict
from mlctl.rollout.domain.traffic.split import Split, SplitRecord
from mlctl.rollout.journal import records, rejections
from mlctl.rollout.journal.records import Delivery, Deployment, JournalEvent, Rollout
from mlctl.rollout.journal.schema import connect, transaction

KEEP_TICKS_SECONDS = 30 * 86_400.0
# The kinds of events that a client writes for the daemon.
_COMMANDS = ("requested", "scaled", "split", "split_ended", "down", *OperatorCommand)


class StaleEpochError(Exception):
    """Another daemon has taken the deployment over, or it was taken down."""


class RequestWaitsError(Exception):
    """The promotion was not recorded: an operator's command came just before."""


class Journal:
    """The journal at `path`. One object per thread; any number of processes."""

    def __init__(self, path: Path, clock: Clock | None = None) -> None:
        self._db = connect(path)
        self._clock = clock or SystemClock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()

    def last_command(self, name: str) -> int:
        """Return the `seq` of the deployment's newest event that its daemon acts on; 0 for none.

        Cheap to poll. What other deployments write into the journal does not change it.
        """
        row = self._db.execute(
            "select seq from event where deployment = ? and kind <> 'tick'"  # noqa: S608 - only question marks
            f" and kind in ({_marks(_COMMANDS)}) order by seq desc limit 1",
            (name, *_COMMANDS),
        ).fetchone()
        return 0 if row is None else int(row["seq"])

    def create(self, name: str, ports: Ports, settings: DeploymentSettings, live: Revision) -> None:
        """Record a new deployment with `live` in blue; DEPLOYMENT_EXISTS if it is up."""
        with transaction(self._db):
            row = self._db.execute("select up from deployment where name = ?", (name,)).fetchone()
            if row is not None and row["up"]:
                raise MlctlError(ErrorCode.DEPLOYMENT_EXISTS, f"deployment {name!r} is up")
            values = (
                *(name, 1, records.dumps(ports), records.dumps(settings)),
                *(Slot.BLUE, records.dumps(live), self._next_epoch(), self._clock.wall()),
            )
            self._db.execute(
                "insert or replace into deployment"
                " (name, up, ports, settings, slot, live, epoch, created)"
                " values (?, ?, ?, ?, ?, ?, ?, ?)",
                values,
            )
            self._db.execute("delete from process where deployment = ?", (name,))
            self._append(name, None, "up", {"revision": live.bento, "digest": live.digest})

    def deployment(self, name: str) -> Deployment:
        """The deployment, up or down; DEPLOYMENT_NOT_FOUND names near ones."""
        row = self._db.execute("select * from deployment where name = ?", (name,)).fetchone()
        if row is None:
            raise self._unknown(name)
        return records.from_row(Deployment, row)

    def live_deployment(self, name: str) -> Deployment:
        """The deployment, which must be up; DEPLOYMENT_NOT_FOUND."""
        deployment = self.deployment(name)
        if not deployment.up:
            raise MlctlError(
                ErrorCode.DEPLOYMENT_NOT_FOUND,
                f"deployment {name!r} is down",
                f"`mlctl up {name}` starts it again with what it served.",
            )
        return deployment

    def deployments(self) -> tuple[Deployment, ...]:
        """Every deployment that is up."""
        rows = self._db.execute("select * from deployment where up order by name").fetchall()
        return tuple(records.from_row(Deployment, row) for row in rows)

    def retire(self, name: str) -> None:
        """Mark it down, end its active rollout as rolled back, and fence its daemon out."""
        with transaction(self._db):
            active = self.active(name)
            if active is not None:
                why = "the deployment was taken down"
                ruling = Verdict(Action.ROLLBACK, HoldReason.OPERATOR, why)
                progress = replace(active.progress, planned=Outcome.ROLLED_BACK, ruling=ruling)
                self._put_progress(active.id, progress)
                self._finish(active.id, Outcome.ROLLED_BACK)
                body = records.ended_body(active, Outcome.ROLLED_BACK, ruling, self._clock.wall())
                self._append(name, active.id, records.ENDED, body)
            self._db.execute(
                "update deployment set up = 0, epoch = ? where name = ?", (self._next_epoch(), name)
            )
            self._append(name, None, "down", {})

    def prune(self, name: str) -> None:
        """Delete the ticks of rollouts that ended and were reported, after `KEEP_TICKS_SECONDS`.

        All other events stay, so the history of the deployment is complete. The file shrinks.
        """
        unreported = self.unreported(name) if self.deployment(name).settings.runs else ()
        with transaction(self._db):
            self._db.execute(
                "delete from event where deployment = ? and kind = 'tick' and at < ?"  # noqa: S608 - only question marks
                " and rollout in (select id from rollout where outcome is not null)"
                f" and rollout not in ({_marks(unreported)})",
                (name, self._clock.wall() - KEEP_TICKS_SECONDS, *unreported),
            )
        self._db.executescript("pragma incremental_vacuum")  # `execute` frees one page

    def take_over(self, name: str) -> int:
        """Become the deployment's daemon: the new epoch, which fences out earlier ones."""
        with transaction(self._db):
            epoch = self._next_epoch()
            self._db.execute("update deployment set epoch = ? where name = ?", (epoch, name))
        return epoch

    def resize(
        self,
        name: str,
        change: Callable[[DeploymentSettings], DeploymentSettings],
        why: str,
        epoch: int | None = None,
    ) -> None:
        """Change the settings; recorded if the number of replicas changes. Without `epoch`: a
        client's command, for a deployment that is up.
        """
        with transaction(self._db):
            deployment = self.deployment(name)
            self._check(name, deployment.epoch if epoch is None else epoch)
            after = change(deployment.settings)
            row = (records.dumps(after), name)
            self._db.execute("update deployment set settings = ? where name = ?", row)
            body = {"from": deployment.settings.replicas, "to": after.replicas, "why": why}
            if body["from"] != body["to"]:
                self._append(name, None, "scaled", body)

    def set_champion(self, name: str, digest: str, epoch: int) -> None:
        """Record that the registry now calls this digest champion."""
        with transaction(self._db):
            self._check(name, epoch)
            self._db.execute("update deployment set champion = ? where name = ?", (digest, name))
            self._append(name, self.promotion(name), "champion_written", {"digest": digest})

    def release_previous(self, name: str, why: str, epoch: int) -> None:
        """Record that the previous revision is no longer kept warm; a rollback has to start it."""
        with transaction(self._db):
            self._check(name, epoch)
            previous = self.deployment(name).previous
            if previous is not None:
                self._set_previous(name, replace(previous, warm_until=0.0))
                body = {"bento": previous.revision.bento, "why": why}
                self._append(name, None, "previous_stopped", body)

    def _set_previous(self, name: str, previous: PreviousRevision | None) -> None:
        text = None if previous is None else records.dumps(previous)
        self._db.execute("update deployment set previous = ? where name = ?", (text, name))

    def promotion(self, name: str) -> int | None:
        """The rollout that made the live revision live; None if `up` started with it."""
        row = self._db.execute(
            "select max(rollout.id) from rollout join deployment on name = rollout.deployment"
            " where name = ? and rollout.created >= deployment.created"
            " and (outcome in (?, ?) or progress ->> 'phase' = ?)",
            (name, Outcome.PROMOTED, Outcome.RESTORED, RolloutPhase.FINALIZE),
        )
        return row.fetchone()[0]  # type: ignore[no-any-return]

    def put_process(
        self, name: str, role: str, process: ProcessRef, body: Mapping[str, Any] | None = None
    ) -> None:
        """Remember the process of `role` ("blue/0", "proxy", "daemon")."""
        values = (name, role, process.pid, process.started, process.token, json.dumps(body or {}))
        self._db.execute("insert or replace into process values (?, ?, ?, ?, ?, ?)", values)

    def drop_process(self, name: str, role: str) -> None:
        self._db.execute("delete from process where deployment = ? and role = ?", (name, role))

    def processes(self, name: str) -> dict[str, tuple[ProcessRef, dict[str, Any]]]:
        """Every remembered process by role."""
        rows = self._db.execute("select * from process where deployment = ?", (name,)).fetchall()
        return {
            row["role"]: (
                ProcessRef(row["pid"], row["started"], row["token"]),
                json.loads(row["body"]),
            )
            for row in rows
        }

    def begin(
        self,
        name: str,
        candidate: Revision,
        spec: RolloutSpec,
        requested: RolloutSpec | None = None,
    ) -> int:
        """Record a new rollout and return its id. `requested` is the spec before any rounding.

        The promotion before it can no longer be taken back. DEPLOYMENT_NOT_FOUND; INVALID_INPUT for
        another model than the live one or for steps that cannot prove a latency limit;
        ALREADY_LIVE; ROLLOUT_ACTIVE; INCOMPATIBLE_INTERFACE and WORSE_EVIDENCE unless the spec
        allows them. All is checked in the transaction, so a late duplicate is rejected.
        """
        spec.require_provable()
        with transaction(self._db):
            broken = self.check(name, candidate, spec)
            self._set_previous(name, None)
            return self._insert(
                self.deployment(name),
                candidate,
                spec,
                max_p99_ms=spec.max_p99_ms,
                requested_max_p99_ms=(requested or spec).max_p99_ms,
                broken=broken,
            )

    def _revert(self, deployment: Deployment, previous: PreviousRevision, reason: str) -> int:
        promoted = self.rollout(previous.promotion)
        spec = RolloutSpec(
            steps=(100,),
            keep_previous_seconds=0,
            alias=promoted.spec.alias,
            notifications=promoted.spec.notifications,
        )
        return self._insert(deployment, previous.revision, spec, reverts=promoted.id, reason=reason)

    def _insert(
        self, deployment: Deployment, candidate: Revision, spec: RolloutSpec, **body: Any
    ) -> int:
        """Add a rollout and the event that begins it; `body` is more of that event."""
        now = self._clock.wall()
        values = (
            *(deployment.name, deployment.slot.other, records.dumps(deployment.live)),
            *(records.dumps(candidate), spec.to_json()),
            *(records.dumps(RolloutProgress(started=now, since=now)), now, body.get("reverts")),
        )
        rollout = self._db.execute(
            "insert into rollout (deployment, slot, live, candidate, spec, progress, created,"
            " reverts) values (?, ?, ?, ?, ?, ?, ?, ?)",
            values,
        ).lastrowid
        revisions = {
            "candidate": candidate.bento,
            "digest": candidate.digest,
            "live": deployment.live.bento,
        }
        self._append(deployment.name, rollout, "requested", {**revisions, **body})
        return int(rollout or 0)

    def split(self, name: str, revision: Revision, percent: int, *, sticky: bool) -> None:
        """Record that `revision` gets `percent` of the traffic, beside the live revision.

        A split with the same revision is changed and keeps what it measured. Raises what `begin`
        raises for a candidate; DEPLOYMENT_NOT_FOUND.
        """
        with transaction(self._db):
            deployment, active = self.live_deployment(name), self.active(name)
            if active is not None:
                raise rejections.under_way(name, active)
            former = deployment.split
            same = former is not None and former.revision.digest == revision.digest
            if former is not None and not same:
                raise rejections.split_under_way(deployment, former.revision)
            rejections.check_candidate(deployment, revision, None)
            rejections.check_interface(deployment, revision, RolloutSpec())
            started = self._clock.wall() if former is None else former.started
            record = "null" if former is None else "split_record"
            self._db.execute(
                f"update deployment set split = ?, split_record = {record} where name = ?",  # noqa: S608 - one of two literals
                (records.dumps(Split(revision, percent, sticky, started)), name),
            )
            self._set_previous(name, None)
            body = {"bento": revision.bento, "digest": revision.digest, "percent": percent}
            self._append(name, None, "split", {**body, "live": deployment.live.bento})

    def end_split(self, name: str, *, keep_other: bool = False) -> int | None:
        """End the split. All traffic goes to the live revision, or with `keep_other` to the other.

        The latter is a rollout without gates, whose id is returned; the split ends with it. The
        replicas that run are taken over. NOT_FOUND if the traffic is not split.
        """
        with transaction(self._db):
            deployment, active = self.live_deployment(name), self.active(name)
            if active is not None:
                raise rejections.under_way(name, active)
            split = deployment.split
            if split is None:
                raise MlctlError(ErrorCode.NOT_FOUND, f"the traffic of {name!r} is not split")
            if not keep_other:
                self._db.execute("update deployment set split = null where name = ?", (name,))
                body = {"bento": split.revision.bento, "live": deployment.live.bento}
                self._append(name, None, "split_ended", body)
                return None
            spec = RolloutSpec(steps=(100,), bake_seconds=0.0)
            rollout = self._insert(deployment, split.revision, spec)
            reason = "the split ends"
            self._append(name, rollout, OperatorCommand.FULL, {"reason": reason})
        return rollout

    def split_record(self, name: str) -> SplitRecord:
        """Return what was measured since the split began; empty without one."""
        row = self._db.execute(
            "select split_record from deployment where name = ?", (name,)
        ).fetchone()
        text = row["split_record"] if row else None
        return records.value_from(SplitRecord, json.loads(text)) if text else SplitRecord()

    def put_split_record(self, name: str, record: SplitRecord, epoch: int) -> None:
        """Keep what was measured, while the traffic is split."""
        with transaction(self._db):
            self._check(name, epoch)
            self._db.execute(
                "update deployment set split_record = ? where name = ? and split is not null",
                (records.dumps(record), name),
            )

    def check(self, name: str, candidate: Revision, spec: RolloutSpec) -> tuple[str, ...]:
        """Raise what `begin` would for this candidate now; return what its callers would miss."""
        deployment, active = self.deployment(name), self.active(name)
        if not deployment.up:
            raise self._unknown(name)
        if deployment.split is not None and active is None:
            raise rejections.split_under_way(deployment, deployment.split.revision)
        rejections.check_candidate(deployment, candidate, active)
        if active is not None:
            raise rejections.under_way(name, active)
        broken = rejections.check_interface(deployment, candidate, spec)
        rejections.check_scores(deployment, candidate, spec)
        return broken

    def active(self, name: str) -> Rollout | None:
        """The rollout under way, if any."""
        return self._rollout("deployment = ? and outcome is null", name)

    def rollout(self, rollout: int) -> Rollout:
        """The rollout with that id; NOT_FOUND if there is none."""
        found = self._rollout("id = ?", rollout)
        if found is None:
            raise MlctlError(ErrorCode.NOT_FOUND, f"there is no rollout {rollout}")
        return found

    def rollouts(self, name: str | None = None) -> tuple[Rollout, ...]:
        """Every rollout of the deployment, or of all of them, newest first."""
        rows = self._db.execute(
            "select * from rollout where ?1 is null or deployment = ?1 order by id desc", (name,)
        )
        return tuple(records.from_row(Rollout, row) for row in rows.fetchall())

    def request(self, name: str, command: OperatorCommand, reason: str) -> int:
        """Record an operator's command for the active rollout; return the rollout's id.

        A rollback after a promotion that has ended is a new rollout, to the previous revision.
        NOT_FOUND if there is nothing that can take the command.
        """
        with transaction(self._db):
            deployment, active = self.live_deployment(name), self.active(name)
            previous = deployment.previous
            if command.final and active is None and previous is not None:
                return self._revert(deployment, previous, reason)
            if active is None and deployment.split is not None:
                raise rejections.split_under_way(deployment, deployment.split.revision)
            in_time = {*REVERSIBLE, RolloutPhase.ROLLBACK} if command.final else REVERSIBLE
            if active is None or active.reverts or active.progress.phase not in in_time:
                raise rejections.nothing_under_way(name, active, self.rollouts(name))
            if command is OperatorCommand.RESUME and not self._pausing(active):
                raise rejections.not_paused(name, active)
            self._append(name, active.id, command, {"reason": reason})
        return active.id

    def requests(self, rollout: int) -> tuple[OperatorRequest, ...]:
        """Return the operators' commands for this rollout, oldest first."""
        kinds = tuple(OperatorCommand)
        rows = self._db.execute(
            "select * from event where rollout = ?1 and kind <> 'tick'"  # noqa: S608 - only question marks
            " and deployment = (select deployment from rollout where id = ?1)"
            f" and kind in ({_marks(kinds)}) order by seq",
            (rollout, *kinds),
        )
        return tuple(map(records.request_from, rows.fetchall()))

    def _pausing(self, active: Rollout) -> bool:
        waiting = (r.command for r in self.requests(active.id) if r.seq > active.progress.applied)
        return active.progress.phase is RolloutPhase.PAUSED or OperatorCommand.PAUSE in waiting

    def save(
        self,
        rollout: Rollout,
        progress: RolloutProgress,
        kind: str,
        body: dict[str, Any],
        epoch: int,
    ) -> None:
        """Record a tick or a move: the new position and its event, together.

        Entering FINALIZE makes the candidate the live revision in the same transaction, and the
        former live one the previous revision; RequestWaitsError instead if an operator's command
        is not applied yet.
        """
        with transaction(self._db):
            self._check(rollout.deployment, epoch)
            promoted = (
                progress.phase is RolloutPhase.FINALIZE
                and rollout.progress.phase is not RolloutPhase.FINALIZE
            )
            if promoted and next_request(self.requests(rollout.id), progress.applied) is not None:
                raise RequestWaitsError
            self._put_progress(rollout.id, progress)
            if promoted:
                self._db.execute(
                    "update deployment set slot = ?, live = ?, split = null where name = ?",
                    (rollout.slot, records.dumps(rollout.candidate), rollout.deployment),
                )
                self._set_previous(rollout.deployment, self._replaced(rollout))
            if progress.phase is RolloutPhase.DONE and progress.planned is not None:
                self._finish(rollout.id, progress.planned)
            self._append(rollout.deployment, rollout.id, kind, body)

    def _replaced(self, rollout: Rollout) -> PreviousRevision | None:
        """What a rollback returns to after `rollout`; nothing after one that was a rollback."""
        if rollout.reverts is not None:
            return None
        settings = self.deployment(rollout.deployment).settings
        keep = rollout.spec.keep_previous_seconds
        # In a cluster its pods run or not as their owner decides.
        kept = keep > 0 and settings.kubernetes is None
        until = self._clock.wall() + keep if kept else 0.0
        return PreviousRevision(rollout.live, until, max(1, settings.replicas), rollout.id)

    def append(
        self, name: str, rollout: int | None, kind: str, body: dict[str, Any], epoch: int
    ) -> None:
        """Record something that happened, as the deployment's daemon."""
        with transaction(self._db):
            self._check(name, epoch)
            self._append(name, rollout, kind, body)

    def add_feedback(self, name: str, body: dict[str, Any]) -> None:
        """Record that a client added labels."""
        with transaction(self._db):
            active = self.active(name)
            self._append(name, active.id if active else None, "feedback", body)

    def events(
        self,
        name: str,
        after: int = 0,
        rollout: int | None = None,
        *,
        ticks: bool = True,
        limit: int | None = None,
    ) -> tuple[JournalEvent, ...]:
        """Events with a higher `seq` than `after`, oldest first; of one rollout if given.

        Most are ticks: leave them out where they are not needed, or read `limit` at a time.
        """
        of_rollout = "" if rollout is None else " and rollout = :rollout"
        kinds = "" if ticks else " and kind <> 'tick'"
        rows = self._db.execute(
            "select * from event where deployment = :name and seq > :after"  # noqa: S608 - literals
            f"{of_rollout}{kinds} order by seq limit :limit",
            {"name": name, "after": after, "rollout": rollout, "limit": limit or -1},
        )
        return tuple(records.from_row(JournalEvent, row) for row in rows.fetchall())

    def newest(
        self, name: str, kind: str | None = None, rollout: int | None = None
    ) -> JournalEvent | None:
        """Return the newest event of the deployment, or of that kind or rollout; None for none."""
        of_kind = "" if kind is None else " and kind = :kind"
        of_rollout = "" if rollout is None else " and rollout = :rollout"
        row = self._db.execute(
            f"select * from event where deployment = :name{of_rollout}{of_kind}"  # noqa: S608 - literals
            " order by seq desc limit 1",
            {"name": name, "kind": kind, "rollout": rollout},
        ).fetchone()
        return None if row is None else records.from_row(JournalEvent, row)

    def last_seq(self) -> int:
        """Return the newest event's place, of any deployment."""
        return int(self._db.execute("select max(seq) from event").fetchone()[0] or 0)

    def events_between(
        self, name: str, after: int, until: int, kinds: Sequence[str]
    ) -> tuple[JournalEvent, ...]:
        """Return the events of these kinds from `after` (excluded) to `until`, oldest first.

        Reads that stretch of the journal only, however long the rest is.
        """
        rows = self._db.execute(
            "select * from event where seq > ? and seq <= ? and +deployment = ?"  # noqa: S608 - only question marks
            f" and kind in ({_marks(kinds)}) order by seq",
            (after, until, name, *kinds),
        )
        return tuple(records.from_row(JournalEvent, row) for row in rows.fetchall())

    def delivery(self, name: str, sink: str) -> Delivery:
        """Return how far `sink` is."""
        row = self._db.execute(
            "select * from delivery where deployment = ? and sink = ?", (name, sink)
        ).fetchone()
        if row is None:
            return Delivery()
        return records.from_row(Delivery, row)

    def put_delivery(self, name: str, sink: str, delivery: Delivery) -> None:
        """Keep how far `sink` is, unless another process has come further."""
        values = (
            *(name, sink, delivery.seq, delivery.failures, delivery.error, delivery.not_before),
            json.dumps(dict(delivery.body), sort_keys=True),
        )
        self._db.execute(
            "insert or replace into delivery select ?1, ?2, ?3, ?4, ?5, ?6, ?7 where not exists"
            " (select 1 from delivery where deployment = ?1 and sink = ?2 and seq > ?3)",
            values,
        )

    def unreported(self, name: str) -> tuple[int, ...]:
        """Return the rollouts, under way or ended, whose run in MLflow is not closed yet."""
        rows = self._db.execute(
            "select id from rollout where deployment = ?1 and not exists (select 1 from delivery"
            " where delivery.deployment = ?1 and sink = ?2 || id and body ->> 'closed')"
            " order by id",
            (name, records.run_sink("")),
        )
        return tuple(row["id"] for row in rows)

    def _append(self, name: str, rollout: int | None, kind: str, body: dict[str, Any]) -> None:
        epoch = self._db.execute("select epoch from meta").fetchone()[0]
        self._db.execute(
            "insert into event (deployment, rollout, at, epoch, kind, body)"
            " values (?, ?, ?, ?, ?, ?)",
            (name, rollout, self._clock.wall(), epoch, kind, records.dumps(body)),
        )

    def _put_progress(self, rollout: int, progress: RolloutProgress) -> None:
        self._db.execute(
            "update rollout set progress = ? where id = ? and outcome is null",
            (records.dumps(progress), rollout),
        )

    def _finish(self, rollout: int, outcome: Outcome) -> None:
        self._db.execute(
            "update rollout set outcome = ? where id = ? and outcome is null", (outcome, rollout)
        )

    def _next_epoch(self) -> int:
        self._db.execute("update meta set epoch = epoch + 1")
        return int(self._db.execute("select epoch from meta").fetchone()[0])

    def _check(self, name: str, epoch: int) -> None:
        deployment = self.deployment(name)
        if deployment.epoch != epoch or not deployment.up:
            raise StaleEpochError(f"epoch {epoch} of {name!r} is over")

    def _rollout(self, where: str, value: object) -> Rollout | None:
        row = self._db.execute(f"select * from rollout where {where}", (value,)).fetchone()  # noqa: S608 - `where` is one of two literals above
        return records.from_row(Rollout, row) if row is not None else None

    def _unknown(self, name: str) -> MlctlError:
        return rejections.unknown(name, [deployment.name for deployment in self.deployments()])


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))
