"""The errors with which the journal rejects a request, with what to do instead. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from mlctl.bundle import interface
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.rollout.domain.machine.state_machine import RolloutPhase
from mlctl.rollout.domain.spec import Outcome, Revision, RolloutSpec
from mlctl.rollout.domain.statistics.scores import clearly_worse
from mlctl.rollout.journal.records import Deployment, Rollout

_SHOWN = 5  # reasons in one message


def unknown(name: str, running: Sequence[str]) -> MlctlError:
    """No deployment of that name runs; the message names the `running` ones with a similar name."""
    near = difflib.get_close_matches(name, running, n=3) or running[:3]
    also = f"; running: {', '.join(near)}" if near else ""
    return MlctlError(ErrorCode.DEPLOYMENT_NOT_FOUND, f"no running deployment {name!r}{also}")


def check_candidate(deployment: Deployment, candidate: Revision, active: Rollout | None) -> None:
    """INVALID_INPUT for another model than the live one's, ALREADY_LIVE for its very digest."""
    name, live = deployment.name, deployment.live
    if candidate.name != live.name:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{name!r} serves the model {live.name!r}, not {candidate.name!r}: "
            "its clients would only get 404",
            "Start the other model under another deployment name: `mlctl up NAME BENTO`.",
        )
    if active is None and live.digest == candidate.digest:
        raise MlctlError(ErrorCode.ALREADY_LIVE, f"{name!r} already serves {candidate.bento}")


def broken(live: Revision, candidate: Revision) -> tuple[str, ...]:
    """Return what callers of `live` would miss; nothing where an interface is not recorded."""
    if not (live.interface and candidate.interface):
        return ()
    documents = (live.interface, candidate.interface)
    return interface.broken(*map(interface.from_document, documents))


def check_interface(
    deployment: Deployment, candidate: Revision, spec: RolloutSpec
) -> tuple[str, ...]:
    """Return what callers would miss; INCOMPATIBLE_INTERFACE unless the spec allows it."""
    reasons = broken(deployment.live, candidate)
    if reasons and not spec.breaking:
        more = f" (and {len(reasons) - _SHOWN} more)" if len(reasons) > _SHOWN else ""
        raise MlctlError(
            ErrorCode.INCOMPATIBLE_INTERFACE,
            f"callers of {deployment.name!r} would break with {candidate.bento}: "
            f"{'; '.join(reasons[:_SHOWN])}{more}",
        )
    return reasons


def check_scores(deployment: Deployment, candidate: Revision, spec: RolloutSpec) -> None:
    """WORSE_EVIDENCE if its proved score is clearly worse, unless the spec allows it."""
    worse = clearly_worse(deployment.live.scores, candidate.scores)
    if worse and not spec.worse:
        raise MlctlError(
            ErrorCode.WORSE_EVIDENCE,
            f"{candidate.bento} is worse than {deployment.live.bento}: {'; '.join(worse)}",
        )


def under_way(name: str, active: Rollout) -> MlctlError:
    """Another rollout is active."""
    to = active.candidate.bento
    if active.progress.phase is RolloutPhase.FINALIZE:
        return MlctlError(
            ErrorCode.ROLLOUT_ACTIVE,
            f"the rollout of {name!r} to {to} was proved and is being finished",
            "Try again in a few seconds; `mlctl status` shows when it has ended.",
        )
    return MlctlError(
        ErrorCode.ROLLOUT_ACTIVE,
        f"a rollout of {name!r} to {to} is under way",
        f"Follow it with `mlctl status {name}`, or end it with `mlctl rollback {name}`.",
    )


def split_under_way(deployment: Deployment, other: Revision) -> MlctlError:
    """The traffic is split, so that the slot of a candidate is not free."""
    name = deployment.name
    return MlctlError(
        ErrorCode.ROLLOUT_ACTIVE,
        f"the traffic of {name!r} is split between {deployment.live.bento} and {other.bento}",
        f"End it with `mlctl split {name} --end`, or keep the other one with "
        f"`mlctl split {name} --end --winner {other.bento}`.",
    )


def nothing_under_way(name: str, active: Rollout | None, rollouts: Sequence[Rollout]) -> MlctlError:
    """No rollout can take the operator's command; `rollouts` are the newest first."""
    what = f"no rollout of {name!r} is under way"
    last = rollouts[0] if rollouts else None
    if active is not None and active.reverts:
        what = f"{name!r} is returning to {active.candidate.bento}"
    elif active is not None and active.progress.phase is RolloutPhase.FINALIZE:
        what = f"{active.candidate.bento} is promoted: rollout {active.id} is over"
    elif active is not None:
        what = f"rollout {active.id} of {name!r} is being rolled back"
    elif last is not None and last.outcome is Outcome.RESTORED:
        what = f"{what}: it already serves {last.candidate.bento} again (rollout {last.id})"
    elif last is not None and last.outcome is not Outcome.PROMOTED:
        what = f"{what}: the last one, to {last.candidate.bento}, was rolled back"
    hint = f"`mlctl history {name}` lists the versions; `mlctl promote {name} BENTO` moves to one."
    return MlctlError(ErrorCode.NOT_FOUND, what, hint)


def not_paused(name: str, active: Rollout) -> MlctlError:
    """There is nothing to resume."""
    return MlctlError(
        ErrorCode.NOT_FOUND,
        f"the rollout of {name!r} to {active.candidate.bento} is not paused",
        f"`mlctl status {name}` shows what it waits for.",
    )
