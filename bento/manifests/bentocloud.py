"""A deployment of BentoCloud, for `bentoml deploy --config-file`. Pure."""

from __future__ import annotations

from bento.manifests.plan import ManifestPlan
from bento.manifests.pod import Json


def files(plan: ManifestPlan, instance_type: str | None = None) -> dict[str, list[Json]]:
    """The Bento itself is what runs there; BentoCloud builds the image and holds requests.

    Ports and addresses are BentoCloud's, and gRPC is off.
    """
    most = plan.scaling.most or plan.scaling.replicas
    service: Json = {
        "scaling": {"min_replicas": plan.scaling.replicas, "max_replicas": most},
        "deployment_strategy": "RollingUpdate",
    }
    if instance_type is not None:
        service["instance_type"] = instance_type
    document = {
        "name": plan.name,
        "bento": plan.model.tag,
        "access_authorization": True,
        "envs": [{"name": name, "value": value} for name, value in sorted(plan.settings.items())],
        "services": {plan.model.service: service},
    }
    return {"bentocloud.yaml": [document]}
