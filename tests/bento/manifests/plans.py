"""Plans for the tests of manifests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import yaml  # type: ignore[import-untyped]

from bento.manifests.plan import Edge, ManifestModel, ManifestPlan, Scaling
from bento.manifests.resources import guess
from bento.manifests.targets import Extras, ManifestTarget, manifests

# The one in C takes a tenth of the time, where there is one.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
IMAGE = "registry.example/shop@sha256:" + "a" * 64
DIGEST = "3f2a" + "0" * 60
PLAN = ManifestPlan(
    name="shop",
    model=ManifestModel(f"shop:{DIGEST[:12]}", DIGEST, "shop", max_rows=32),
    image=IMAGE,
    resources=guess(10 << 20, 1, gpu=False),
)
# Everything that can be asked for at once.
FULL = replace(
    PLAN,
    namespace="prod",
    scaling=Scaling(0, 8, wake="sum(rate(gateway_requests[1m]))"),
    edge=Edge("infra/public", ("shop.example.com",), allow=("monitoring", "10.0.0.0/8")),
    settings={"MLCTL_WORKERS": "2", "MLCTL_OTLP_ENDPOINT": "http://collector:4318"},
    token_secret="shop-token",
    resources=guess(10 << 20, 2, gpu=True),
)


def documents(
    plan: ManifestPlan, target: ManifestTarget, extras: Extras | None = None
) -> dict[str, Any]:
    """What the YAML says, by kind and name; Compose's and BentoCloud's by their file."""
    found = {}
    for name, text in manifests(plan, target, extras).items():
        for each in yaml.load_all(text, Loader=_LOADER):
            kind = each.get("kind")
            found[f"{kind}/{each['metadata']['name']}" if kind else name] = each
    return found
