from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bento.manifests.kserve import Canary, Mode
from bento.manifests.plan import ManifestPlan, Scaling
from bento.manifests.targets import Extras, ManifestTarget
from bundle.errors import MlctlError
from tests.bento.manifests.plans import FULL, IMAGE, PLAN, documents
from tests.support.schemas import faults, mutants

STABLE = Extras(Mode.STANDARD, Canary(10, "registry.example/shop:before"))
KNATIVE = Extras(Mode.KNATIVE, Canary(10))


def made(plan: ManifestPlan, extras: Extras) -> Any:
    return documents(plan, ManifestTarget.KSERVE, extras)["InferenceService/shop"]


@pytest.mark.parametrize("extras", [Extras(), Extras(Mode.KNATIVE), STABLE, KNATIVE])
@pytest.mark.parametrize("plan", [PLAN, replace(FULL, scaling=Scaling(1, 4))])
def test_it_keeps_to_the_published_schema(plan: ManifestPlan, extras: Extras) -> None:
    assert not faults(made(plan, extras))


@pytest.mark.parametrize("extras", [STABLE, KNATIVE])
def test_the_schema_knows_every_field_that_is_written(extras: Extras) -> None:
    service = made(FULL, Extras(Mode.KNATIVE)) if extras is KNATIVE else made(PLAN, extras)
    assert not [what for what, mutant in mutants(service) if not faults(mutant)]


def test_the_mode_is_always_said() -> None:
    for mode, word in ((Mode.KNATIVE, "Knative"), (Mode.STANDARD, "Standard")):
        notes = made(PLAN, Extras(mode))["metadata"]["annotations"]
        assert notes["serving.kserve.io/deploymentMode"] == word


def test_a_canary_is_what_its_mode_knows() -> None:
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
    "extras", [Extras(Mode.STANDARD, Canary(5)), Extras(Mode.KNATIVE, Canary(5, "x"))]
)
def test_a_canary_of_the_other_mode_is_refused(extras: Extras) -> None:
    with pytest.raises(MlctlError, match="--stable-image"):
        made(PLAN, extras)


def test_knative_gets_nothing_that_it_refuses() -> None:
    predictor = made(FULL, KNATIVE)["spec"]["predictor"]
    (server,) = predictor["containers"]
    assert not {"securityContext", "terminationGracePeriodSeconds"} & predictor.keys()
    assert not {"startupProbe", "lifecycle"} & server.keys()
    assert [port["name"] for port in server["ports"]] == ["http1"]
    assert predictor["minReplicas"] == 0  # its activator holds the first request
    assert predictor["annotations"]["serving.knative.dev/progress-deadline"] == "300s"


def test_a_server_there_speaks_v2_over_http_and_has_no_rights() -> None:
    (server,) = made(PLAN, Extras())["spec"]["predictor"]["containers"]
    environment = {each["name"]: each["value"] for each in server["env"]}
    assert environment["PROTOCOL"] == "v2"
    # The image switches it on, and KServe sends nothing there.
    assert environment["MLCTL_GRPC_PORT"] == ""
    assert server["securityContext"]["runAsNonRoot"]
    assert server["securityContext"]["readOnlyRootFilesystem"]


def test_nobody_wakes_a_server_in_the_standard_mode() -> None:
    with pytest.raises(MlctlError, match="nothing would start a server"):
        made(replace(PLAN, scaling=Scaling(0, 4)), Extras())
