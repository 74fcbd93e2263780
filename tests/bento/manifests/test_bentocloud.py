from __future__ import annotations

from dataclasses import replace
from typing import Any

from bentoml._internal.cloud.schemas.schemasv2 import CreateDeploymentSchema
from bentoml._internal.utils.cattr import bentoml_cattr

from mlctl.bento.manifests.plan import ManifestPlan, Scaling
from mlctl.bento.manifests.targets import ManifestTarget, TargetOptions
from tests.bento.manifests.example_plans import PLAN, documents


def made(plan: ManifestPlan, options: TargetOptions | None = None) -> Any:
    return documents(plan, ManifestTarget.BENTOCLOUD, options)["bentocloud.yaml"]


def understood(document: Any) -> Any:
    """Return the document as BentoML's own client reads and sends it."""
    return bentoml_cattr.unstructure(bentoml_cattr.structure(document, CreateDeploymentSchema))


def test_bentocloud__bentomls_own_reader__understands_every_field() -> None:
    plan = replace(PLAN, image="", scaling=Scaling(0, 3), settings={"MLCTL_WORKERS": "2"})
    document = made(plan, TargetOptions(instance_type="cpu.2"))
    assert understood(document) == document
    assert document["services"]["shop"]["scaling"] == {"min_replicas": 0, "max_replicas": 3}
    document["services"]["shop"]["unknownField"] = 1
    assert understood(document) != document


def test_bentocloud__deployment__requires_a_token() -> None:
    assert made(PLAN)["access_authorization"] is True
