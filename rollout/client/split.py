"""Split the traffic of a deployment between two revisions until an operator ends it."""

from __future__ import annotations

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.rollout.client.lifecycle import ensure_daemon, wait_until
from mlctl.rollout.client.process_table import slot_rows
from mlctl.rollout.domain.spec import Revision
from mlctl.rollout.drivers.local.logs import path as log_path
from mlctl.rollout.drivers.local.processes import log_tail
from mlctl.rollout.journal import paths
from mlctl.rollout.journal.journal import Journal
from mlctl.rollout.journal.records import Deployment


def split(name: str, shares: dict[Revision, int], *, sticky: bool) -> Deployment:
    """Give each of two revisions its percent of the traffic; return when both serve.

    One of them is the live one. INVALID_INPUT if not, for other shares than two with a sum of 100,
    and in a cluster; NOT_READY if the other one does not become ready, which ends the split;
    what `promote` raises for the model, the interface and a rollout under way.
    """
    with Journal(paths.journal()) as journal:
        deployment = journal.live_deployment(name)
        _require_local(deployment)
        other = _other(deployment, shares)
        paths.require_writable(name)
        journal.split(name, other, shares[other], sticky=sticky)
        ensure_daemon(journal, name)
        try:
            _await_ready(journal, name)
        except MlctlError:
            journal.end_split(name)
            raise
        return journal.deployment(name)


def end(name: str, keep: Revision | None = None) -> int | None:
    """End the split: all traffic goes to the live revision, or to `keep`, one of the two.

    Return the rollout that moves the traffic to `keep`, None if that is the live one. NOT_FOUND
    without a split.
    """
    with Journal(paths.journal()) as journal:
        deployment = journal.live_deployment(name)
        found = deployment.split
        keep_other = False
        if keep is not None and found is not None:
            both = (deployment.live.digest, found.revision.digest)
            if keep.digest not in both:
                raise MlctlError(
                    ErrorCode.INVALID_INPUT,
                    f"{keep.bento} is not part of the split of {name!r}: it is between "
                    f"{deployment.live.bento} and {found.revision.bento}",
                )
            keep_other = keep.digest == found.revision.digest
        rollout = journal.end_split(name, keep_other=keep_other)
        ensure_daemon(journal, name)
        return rollout


def _require_local(deployment: Deployment) -> None:
    if deployment.settings.kubernetes is not None:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{deployment.name!r} runs in a cluster: a split needs a deployment on this machine",
        )


def _other(deployment: Deployment, shares: dict[Revision, int]) -> Revision:
    """Return the revision that is not live; INVALID_INPUT for shares that are no split."""
    live = deployment.live
    others = [revision for revision in shares if revision.digest != live.digest]
    if len(shares) != 2 or len(others) != 1:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"a split is between {live.bento}, which {deployment.name!r} serves, and one other "
            "Bento",
            f"Run `mlctl split {deployment.name} {live.bento}=90 BENTO=10`.",
        )
    if sum(shares.values()) != 100 or min(shares.values()) < 1:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"the shares are {' and '.join(map(str, shares.values()))} %: give two from 1 to 99 "
            "with a sum of 100",
        )
    return others[0]


def _await_ready(journal: Journal, name: str) -> None:
    """Wait until the replicas of the other slot serve; NOT_READY with the end of a log."""
    deployment = journal.deployment(name)
    settings, slot = deployment.settings, deployment.slot.other
    begun = journal.last_seq()

    def serves() -> bool:
        ready = sum(row.healthy for row in slot_rows(journal, deployment, slot))
        if ready >= settings.replicas:
            return True
        failures = journal.events_between(name, begun, journal.last_seq(), ("start_failed",))
        if failures:
            raise _not_ready(deployment, str(failures[0].body["log"]))
        return False

    if wait_until(serves, settings.ready_seconds):
        return
    log = log_path(paths.directory(name) / "logs", f"{slot}/0")
    raise _not_ready(deployment, log_tail(log))


def _not_ready(deployment: Deployment, log: str) -> MlctlError:
    bento = deployment.split.revision.bento if deployment.split else "the other Bento"
    message = f"{bento} did not become ready, so the split has ended; its log ends:\n{log}"
    return MlctlError(ErrorCode.NOT_READY, message)
