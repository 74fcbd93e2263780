from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlctl.rollout.domain.kubernetes_target import KubernetesTarget
from mlctl.rollout.domain.spec import Slot
from mlctl.rollout.drivers.kubernetes import route as routes
from mlctl.rollout.drivers.kubernetes.route import Acceptance, Claim, RouteUnfitError
from tests.support.kube import route

TARGET = KubernetesTarget("shop", "web", "shop-blue", "shop-green")


def read(*others: dict[str, Any], weights: tuple[int, int] = (100, 0)) -> dict[str, Any]:
    made = route(*others, weights=weights)
    made["metadata"] |= {"resourceVersion": "7", "generation": 3}
    return made


@given(st.integers(0, 1_000_000), st.integers(0, 1_000_000))
def test_weights_of__any_weights__round_neither_to_0_nor_100(blue: int, green: int) -> None:
    found = routes.weights_of(read(weights=(blue, green)), TARGET)
    if blue + green == 0:
        assert found is None
        return
    assert found is not None
    assert sum(found.values()) == 100
    assert (found[Slot.BLUE] == 0) == (blue == 0)
    assert (found[Slot.GREEN] == 0) == (green == 0)


@given(st.integers(0, 100))
def test_patched__applied_patch__needs_no_second_one(green: int) -> None:
    weights = {Slot.BLUE: 100 - green, Slot.GREEN: green}
    before = read()
    patch = routes.patched(before, TARGET, weights, Claim("a", 1))
    assert patch is not None
    assert patch["metadata"]["resourceVersion"] == "7"
    after = {**before, "spec": {**before["spec"], **patch.get("spec", {})}}
    after["metadata"] = {**before["metadata"], **patch["metadata"]}
    assert routes.patched(after, TARGET, weights, Claim("a", 1)) is None
    assert routes.patched(after, TARGET, weights, Claim("a", 2)) is not None


@pytest.mark.parametrize(
    "other",
    [
        {"name": "shop-blue", "port": 81, "weight": 0},
        {"name": "shop-green", "kind": "Service", "group": "", "weight": 0},
    ],
)
def test_weights_of__service_named_twice__is_rejected(other: dict[str, Any]) -> None:
    with pytest.raises(RouteUnfitError, match="twice"):
        routes.weights_of(read(other), TARGET)


@pytest.mark.parametrize(
    "other",
    [
        {"name": "shop-blue", "namespace": "other", "weight": 0},
        {"name": "shop-green", "kind": "ServiceImport", "group": "x", "weight": 0},
    ],
)
def test_weights_of__same_name_of_another_kind__is_ignored(other: dict[str, Any]) -> None:
    assert routes.weights_of(read(other), TARGET) == {Slot.BLUE: 100, Slot.GREEN: 0}


def test_claim_of__epoch_is_no_number__is_rejected() -> None:
    made = read()
    made["metadata"]["annotations"] = {routes.EPOCH: "abc", routes.HOLDER: "x"}
    with pytest.raises(RouteUnfitError, match="no number"):
        routes.claim_of(made)


def ruled(kind: str, status: str, seen: int) -> dict[str, Any]:
    condition = {"type": kind, "status": status, "observedGeneration": seen, "reason": "Because"}
    status_of = {"parents": [{"parentRef": {"name": "public"}, "conditions": [condition]}]}
    return {**read(), "status": status_of}


@pytest.mark.parametrize(
    ("made", "found"),
    [
        (read(), Acceptance.ACCEPTED),
        (ruled("Accepted", "True", 3), Acceptance.ACCEPTED),
        (ruled("Accepted", "True", 2), Acceptance.WAITING),
        (ruled("Accepted", "False", 2), Acceptance.WAITING),
        (ruled("Accepted", "False", 3), Acceptance.REJECTED),
        (ruled("ResolvedRefs", "False", 3), Acceptance.REJECTED),
        (ruled("Programmed", "False", 3), Acceptance.ACCEPTED),
    ],
)
def test_acceptance__status_of_each_gateway__is_read(
    made: dict[str, Any], found: Acceptance
) -> None:
    assert routes.acceptance(made)[0] is found
