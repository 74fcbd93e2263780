"""An HTTPRoute's JSON: whose it is, how it shares the requests, what its Gateway says. Pure.

Only rules that name both of our Services are ours; their other backends and all other rules
stay as they are.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from mlctl.rollout.domain.kubernetes_target import KubernetesTarget
from mlctl.rollout.domain.spec import Slot

EPOCH = "mlctl.io/epoch"
HOLDER = "mlctl.io/holder"

Json = dict[str, Any]


class Acceptance(StrEnum):
    """Whether the Gateways of a route have accepted its newest version."""

    ACCEPTED = "accepted"
    WAITING = "waiting"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to write the weights: a deployment, and the epoch of its daemon."""

    holder: str
    epoch: int


class RouteUnfitError(Exception):
    """The route cannot carry a rollout; the message says what to change."""


def claim_of(route: Json) -> Claim | None:
    """Return the last writer of the weights; None if there was none.

    RouteUnfitError for an epoch that is no number.
    """
    marks = route["metadata"].get("annotations") or {}
    if HOLDER not in marks and EPOCH not in marks:
        return None
    text = str(marks.get(EPOCH, "0"))
    if not text.isdecimal():
        raise RouteUnfitError(f"its annotation {EPOCH} is {text!r}, which is no number: remove it")
    return Claim(str(marks.get(HOLDER, "")), int(text))


def weights_of(route: Json, target: KubernetesTarget) -> dict[Slot, int] | None:
    """Percent per slot in the first rule that is ours; None if neither gets anything.

    RouteUnfitError if no rule is ours.
    """
    pair = next(_pairs(route, target), None)
    if pair is None:
        raise _no_rule(target)
    return _shares(pair)


def min_shares(route: Json, target: KubernetesTarget) -> dict[Slot, int]:
    """The smallest percent that each slot has in any rule that is ours. RouteUnfitError."""
    shares = [_shares(pair) or dict.fromkeys(Slot, 0) for pair in _pairs(route, target)]
    if not shares:
        raise _no_rule(target)
    return {slot: min(each[slot] for each in shares) for slot in Slot}


def patched(
    route: Json, target: KubernetesTarget, weights: Mapping[Slot, int], claim: Claim
) -> Json | None:
    """The merge patch after which `weights` and `claim` hold; None if they do.

    It carries the resourceVersion that was read, so that it fails if anyone wrote in between.
    RouteUnfitError.
    """
    wanted = copy.deepcopy(route)
    pairs = list(_pairs(wanted, target))
    if not pairs:
        raise _no_rule(target)
    for pair in pairs:
        for slot, ref in pair.items():
            if _weight(ref) != weights[slot]:
                ref["weight"] = weights[slot]
    if wanted["spec"] == route["spec"] and claim_of(route) == claim:
        return None
    version = route["metadata"]["resourceVersion"]
    marks = {EPOCH: str(claim.epoch), HOLDER: claim.holder}
    patch: Json = {"metadata": {"resourceVersion": version, "annotations": marks}}
    if wanted["spec"] != route["spec"]:
        patch["spec"] = {"rules": wanted["spec"]["rules"]}
    return patch


def acceptance(route: Json) -> tuple[Acceptance, str]:
    """What the Gateways that report on the route say of it, and why.

    Without any report there is nothing to wait for: accepted.
    """
    generation = route["metadata"].get("generation", 0)
    waiting = ""
    for parent in (route.get("status") or {}).get("parents") or []:
        name = str((parent.get("parentRef") or {}).get("name", "?"))
        for condition in parent.get("conditions") or []:
            if condition.get("type") not in ("Accepted", "ResolvedRefs"):
                continue
            if condition.get("observedGeneration", generation) < generation:
                waiting = f"Gateway {name} has not accepted the weights yet"
            elif condition.get("status") == "False":
                reason, message = condition.get("reason", "?"), condition.get("message", "")
                return (
                    Acceptance.REJECTED,
                    f"Gateway {name} rejects the route: {reason} {message}".strip(),
                )
    return (Acceptance.WAITING, waiting) if waiting else (Acceptance.ACCEPTED, "")


def _pairs(route: Json, target: KubernetesTarget) -> Iterator[dict[Slot, Json]]:
    """The two backends of each rule that is ours; RouteUnfitError for a rule that cannot be."""
    namespace = route["metadata"].get("namespace", target.namespace)
    for rule in route["spec"].get("rules") or []:
        refs = rule.get("backendRefs") or []
        found = [
            (slot, ref)
            for ref in refs
            for slot in Slot
            if _names(ref, target.services[slot], namespace)
        ]
        pair = dict(found)
        if len(pair) < len(Slot):
            continue
        if len(found) > len(Slot):
            raise RouteUnfitError("a rule names one of the Services twice: keep one backendRef")
        others = sum(map(_weight, refs)) - sum(map(_weight, pair.values()))
        if others and sum(map(_weight, pair.values())) != 100:
            raise RouteUnfitError(
                "a rule has other backends too: give blue's and green's backendRefs weights that "
                "sum to 100, so that the others' share stays what it is"
            )
        yield pair


def _shares(pair: Mapping[Slot, Json]) -> dict[Slot, int] | None:
    blue, green = (_weight(pair[slot]) for slot in Slot)
    if blue + green == 0:
        return None
    share = round(100 * blue / (blue + green))
    # A share that is not nothing must not become nothing.
    share = min(max(share, int(blue > 0)), 100 - int(green > 0))
    return {Slot.BLUE: share, Slot.GREEN: 100 - share}


def _names(ref: Json, service: str, namespace: str) -> bool:
    kind = (ref.get("group") or "", ref.get("kind") or "Service")
    here = (ref.get("namespace") or namespace) == namespace
    return kind == ("", "Service") and here and ref.get("name") == service


def _weight(ref: Json) -> int:
    return int(ref.get("weight", 1))


def _no_rule(target: KubernetesTarget) -> RouteUnfitError:
    both = f"{target.blue} and {target.green}"
    return RouteUnfitError(f"no rule has both Services, {both}, as backendRefs")
