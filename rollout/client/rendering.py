"""How rollouts are shown: one line for an event, one document for a rollout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.rollout.domain.spec import Outcome
from mlctl.rollout.domain.statistics.verdict import first_line
from mlctl.rollout.journal.records import JournalEvent, Rollout

# The counts of a tick that are shown when they are not zero, and their words.
_BAD = {
    "errors": "failed",
    "slow": "slow",
    "abandoned": "abandoned by their callers",
    "client_errors": "rejected as the caller's fault",
}
# Events of one sentence, filled from their body.
_SENTENCES = {
    "previous_stopped": "{bento} is no longer kept warm: {why}",
    "champion_failed": "the registry was not updated: {message}; retrying",
    "no_traffic": "{why}",
}


def local_time(seconds: float) -> str:
    """Wall-clock seconds as local time of day with its date."""
    return datetime.fromtimestamp(seconds, tz=UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def verdict_text(verdict: Mapping[str, Any]) -> str:
    """Return gate, value, limit, n and reason of a verdict on one line, without any log."""
    parts = [str(verdict["gate"])]
    if verdict["value"] is not None:
        parts.append(f"value {verdict['value']:.4g}")
    if verdict["limit"] is not None:
        parts.append(f"limit {verdict['limit']:.4g}")
    parts.append(f"n={verdict['n']}")
    return f"{', '.join(parts)}: {first_line(verdict['why'])}"


def require_promoted(rollout: Rollout) -> None:
    """Raise ROLLED_BACK or INCONCLUSIVE with the verdict, unless the ended rollout promoted."""
    if rollout.outcome is Outcome.PROMOTED:
        return
    code = (
        ErrorCode.INCONCLUSIVE if rollout.outcome is Outcome.INCONCLUSIVE else ErrorCode.ROLLED_BACK
    )
    ruling = rollout.progress.ruling
    assert ruling is not None, "a rollout that is not promoted ends with a verdict"
    log = ruling.why.partition("\n")[2]
    ends = f"; its log ends:\n{log}" if log else ""
    message = f"{rollout.candidate.bento} was not promoted: {verdict_text(asdict(ruling))}{ends}"
    hint = (
        f"`mlctl history {rollout.deployment}` shows the gate, its value, its limit and the counts."
    )
    raise MlctlError(code, message, hint)


def event_line(event: JournalEvent) -> str | None:
    """What a person wants to see of an event; None for those that only the journal needs."""
    text = _event_text(event.kind, event.body)
    return None if text is None else f"{local_time(event.at)[11:]}  {text}"


def is_quiet(event: JournalEvent) -> bool:
    """Whether an event is a tick that found nothing wrong and changed nothing."""
    if event.kind != "tick":
        return False
    window = event.body["window"]["candidate"]
    return not any(window[bad] for bad in _BAD) and event.body["verdict"]["action"] == "hold"


def _event_text(kind: str, body: Mapping[str, Any]) -> str | None:
    match kind:
        case "requested":
            return _requested_text(body)
        case "tick":
            return (
                f"{body['phase']:<8} {body['weight']:>3} %  "
                f"{_window_text(body['window']['candidate'])}{_shadow_text(body)}  "
                f"{body['verdict']['action']}: {verdict_text(body['verdict'])}"
            )
        case "phase":
            return f"{body['phase']:<8} {body['weight']:>3} %{_because(body)}"
        case "traffic_restored":
            return _restored_text(body)
        case "ended":
            kept = body.get("disagreements")
            rows = f"; rows with different answers are in {kept}" if kept else ""
            return f"{body['outcome']} after {body['seconds']:.1f} s: {body['bento']}{rows}"
        case "feedback":
            found = "; ".join(map(accuracy_text, body["revisions"]))
            return f"{body['joined']} labels, {body['unknown']} of unknown requests  {found}"
        case _:
            return _rare_text(kind, body)


def _rare_text(kind: str, body: Mapping[str, Any]) -> str:
    match kind:
        case _ if kind.endswith("_requested"):
            return f"{kind.replace('_', ' ')}: {body['reason']}"
        case "split" | "split_ended":
            return _split_text(body)
        case _:
            return _SENTENCES.get(kind, kind.replace("_", " ")).format(**body)


def _requested_text(body: Mapping[str, Any]) -> str:
    text = f"{body['live']} -> {body['candidate']}"
    if "reverts" in body:
        return f"{text}  takes rollout {body['reverts']} back: {body['reason']}"
    return f"{text}{_judged_limit(body)}{_broken(body)}"


def _split_text(body: Mapping[str, Any]) -> str:
    if "percent" not in body:
        return f"the split with {body['bento']} has ended: all traffic is on {body['live']}"
    return f"split: {body['live']} {100 - body['percent']} %, {body['bento']} {body['percent']} %"


def accuracy_text(revision: Mapping[str, Any]) -> str:
    """How a revision did on its labelled requests, in one line."""
    off = revision["mean_error"]
    distance = "" if off is None else f", mean error {off:.4g}"
    right = f"{100.0 * revision['accuracy']:.1f} % of {revision['requests']} labelled requests"
    return f"{revision['bento']}: {right} answered right{distance}"


def _window_text(window: Mapping[str, Any]) -> str:
    """A tick's counts: the requests, and the bad ones among them."""
    bad = [f"{window[name]} {_BAD[name]}" for name in _BAD if window[name]]
    return ", ".join([f"{window['requests']:>4} requests", *bad])


def _shadow_text(body: Mapping[str, Any]) -> str:
    """What was found of the copies, on a tick that had any."""
    shadow = body.get("shadow")
    if not shadow:
        return ""
    return f", {shadow['requests']} compared, {shadow['differed']} rows differ"


def _because(body: Mapping[str, Any]) -> str:
    """Why a rollout moved on, where that is more than its own step."""
    if body.get("cold"):
        return "  the previous version no longer runs: it is started first"
    if skipped := body.get("shadow_skipped"):
        return f"  without a shadow: {skipped}"
    verdict = body.get("verdict")
    return f"  because of {verdict_text(verdict)}" if verdict else ""


def _judged_limit(body: Mapping[str, Any]) -> str:
    """The latency limit, where it had to be rounded up to an edge of the proxy's histogram."""
    wanted, judged = body.get("requested_max_p99_ms"), body.get("max_p99_ms")
    return "" if wanted == judged else f" (p99 is judged at {judged:g} ms, requested {wanted:g} ms)"


def _broken(body: Mapping[str, Any]) -> str:
    """What callers will miss, where the rollout was started all the same."""
    reasons = body.get("broken")
    return f"  callers will miss: {'; '.join(reasons)}" if reasons else ""


def _restored_text(body: Mapping[str, Any]) -> str:
    text = f"all traffic is back, {body['seconds_since_decision']:.2f} s after the decision"
    if body["seconds_since_first_bad"] is not None:
        text += f", {body['seconds_since_first_bad']:.1f} s after the first bad tick"
    return text


def rollout_document(rollout: Rollout) -> dict[str, Any]:
    """A rollout as --json shows it. Times are wall-clock seconds."""
    progress = rollout.progress
    return {
        "id": rollout.id,
        "candidate": {"bento": rollout.candidate.bento, "digest": rollout.candidate.digest},
        "live": {"bento": rollout.live.bento, "digest": rollout.live.digest},
        "created": rollout.created,
        "reverts": rollout.reverts,
        "phase": progress.phase.value,
        "outcome": rollout.outcome.value if rollout.outcome else None,
        "verdict": asdict(progress.ruling) if progress.ruling else None,
        "exposed": progress.exposed,
        "first_bad": progress.first_bad,
        "restored": progress.restored,
        "accuracy": _accuracy_document(rollout),
    }


def _accuracy_document(rollout: Rollout) -> dict[str, Any] | None:
    """The labelled requests of both revisions; None for a rollout that is not judged by labels."""
    from mlctl.rollout.domain.statistics.verdict import Gate

    if rollout.spec.min_accuracy is None:
        return None
    counted = rollout.progress.evidence.of(Gate.ACCURACY_VS_LIMIT)
    return {
        side: {"labelled": trials.n, "accuracy": 1.0 - trials.share if trials.n else None}
        for side, trials in (("candidate", counted.ours), ("live", counted.theirs))
    }


def accuracy_line(rollout: Rollout) -> str:
    """The labelled requests of both revisions of a rollout that is judged by labels."""
    sides = (_accuracy_document(rollout) or {}).items()
    parts = [
        f"{side} {100.0 * each['accuracy']:.1f} % right of {each['labelled']}"
        for side, each in sides
        if each["labelled"]
    ]
    return ", ".join(parts) or f"none yet: `mlctl feedback {rollout.deployment} FILE` adds them"
