"""Plans that the tests of manifests share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import yaml  # type: ignore[import-untyped]

from mlctl.bento.manifests.plan import ManifestModel, ManifestPlan, NetworkAccess, Scaling
from mlctl.bento.manifests.resources import estimate
from mlctl.bento.manifests.targets import ManifestTarget, TargetOptions, manifests

# libyaml's loader, where PyYAML has it, takes a tenth of the time.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
IMAGE = "registry.example/shop@sha256:" + "a" * 64
DIGEST = "3f2a" + "0" * 60
PLAN = ManifestPlan(
    name="shop",
    model=ManifestModel(f"shop:{DIGEST[:12]}", DIGEST, "shop", max_rows=32),
    image=IMAGE,
    resources=estimate(10 << 20, 1, gpu=False),
)
# Every option at once.
FULL = replace(
    PLAN,
    namespace="prod",
    scaling=Scaling(0, 8, wake_query="sum(rate(gateway_requests[1m]))"),
    access=NetworkAccess("infra/public", ("shop.example.com",), allow=("monitoring", "10.0.0.0/8")),
    settings={"MLCTL_WORKERS": "2", "MLCTL_OTLP_ENDPOINT": "http://collector:4318"},
    token_secret="shop-token",
    resources=estimate(10 << 20, 2, gpu=True),
)


def documents(
    plan: ManifestPlan, target: ManifestTarget, options: TargetOptions | None = None
) -> dict[str, Any]:
    """Return the parsed documents by kind and name; those without a kind by their file."""
    found = {}
    for name, text in manifests(plan, target, options).items():
        for each in yaml.load_all(text, Loader=_LOADER):
            kind = each.get("kind")
            found[f"{kind}/{each['metadata']['name']}" if kind else name] = each
    return found
