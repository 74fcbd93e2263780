from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mlctl.bento.manifests.plan import ManifestPlan, Scaling
from mlctl.bento.manifests.targets import Canary, KServeMode, ManifestTarget, TargetOptions
from mlctl.core.errors import MlctlError
from tests.bento.manifests.example_plans import FULL, IMAGE, PLAN, documents
from tests.support.schemas import faults, mutants

STABLE = TargetOptions(KServeMode.STANDARD, Canary(10, "registry.example/shop:before"))
KNATIVE = TargetOptions(KServeMode.KNATIVE, Canary(10))


def made(plan: ManifestPlan, options: TargetOptions) -> Any:
    return documents(plan, ManifestTarget.KSERVE, options)["InferenceService/shop"]


@pytest.mark.parametrize(
    "options", [TargetOptions(), TargetOptions(KServeMode.KNATIVE), STABLE, KNATIVE]
)
@pytest.mark.parametrize("plan", [PLAN, replace(FULL, scaling=Scaling(1, 4))])
def test_kserve__every_mode_and_canary__matches_the_published_schema(
    plan: ManifestPlan, options: TargetOptions
) -> None:
    assert not faults(made(plan, options))


@pytest.mark.parametrize("options", [STABLE, KNATIVE])
def test_kserve__one_wrong_field_or_value__violates_the_schema(options: TargetOptions) -> None:
    service = (
        made(FULL, TargetOptions(KServeMode.KNATIVE)) if options is KNATIVE else made(PLAN, options)
    )
    assert not [what for what, mutant in mutants(service) if not faults(mutant)]


def test_kserve__any_mode__is_written_down() -> None:
    for mode, word in ((KServeMode.KNATIVE, "Knative"), (KServeMode.STANDARD, "Standard")):
        notes = made(PLAN, TargetOptions(mode))["metadata"]["annotations"]
        assert notes["serving.kserve.io/deploymentMode"] == word


def test_canary__each_mode__uses_the_fields_of_that_mode() -> None:
    knative = made(PLAN, KNATIVE)["spec"]
    assert knative["predictor"]["canaryTrafficPercent"] == 10
    assert knative["predictor"]["containers"][0]["image"] == IMAGE
    assert "canary" not in knative
    standard = made(PLAN, STABLE)["spec"]
    assert "canaryTrafficPercent" not in standard["predictor"]
    assert standard["predictor"]["containers"][0]["image"] == "registry.example/shop:before"
    (canary,) = standard["canary"]
    assert canary["trafficPercent"] == 10
    assert canary["predictor"]["name"] == "v3f2a0000"
    assert canary["predictor"]["containers"][0]["image"] == IMAGE
    assert not {"minReplicas", "maxReplicas"} & canary["predictor"].keys()


@pytest.mark.parametrize(
    "options",
    [
        TargetOptions(KServeMode.STANDARD, Canary(5)),
        TargetOptions(KServeMode.KNATIVE, Canary(5, "x")),
    ],
)
def test_canary__stable_image_for_the_wrong_mode__is_rejected(options: TargetOptions) -> None:
    with pytest.raises(MlctlError, match="--stable-image"):
        made(PLAN, options)


def test_knative__full_plan__has_no_field_that_it_rejects() -> None:
    predictor = made(FULL, KNATIVE)["spec"]["predictor"]
    (server,) = predictor["containers"]
    assert not {"securityContext", "terminationGracePeriodSeconds"} & predictor.keys()
    assert not {"startupProbe", "lifecycle"} & server.keys()
    assert [port["name"] for port in server["ports"]] == ["http1"]
    assert predictor["minReplicas"] == 0  # its activator holds the first request
    assert predictor["annotations"]["serving.knative.dev/progress-deadline"] == "300s"


def test_kserve__container__serves_v2_over_http_without_privileges() -> None:
    (server,) = made(PLAN, TargetOptions())["spec"]["predictor"]["containers"]
    environment = {each["name"]: each["value"] for each in server["env"]}
    assert environment["PROTOCOL"] == "v2"
    # The image switches it on, and KServe sends nothing there.
    assert environment["MLCTL_GRPC_PORT"] == ""
    assert server["securityContext"]["runAsNonRoot"]
    assert server["securityContext"]["readOnlyRootFilesystem"]


def test_standard_mode__scale_to_zero__needs_a_wake_query() -> None:
    with pytest.raises(MlctlError, match="would never start again"):
        made(replace(PLAN, scaling=Scaling(0, 4)), TargetOptions())
