"""The targets by name, and what each takes of a plan and what is only its own."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from bento.manifests import bentocloud, compose, kserve, kubernetes
from bento.manifests.kserve import Canary, Mode
from bento.manifests.plan import ManifestPlan
from bento.manifests.render import render
from bundle.errors import ErrorCode, MlctlError


class ManifestTarget(StrEnum):
    """Where manifests are for."""

    KUBERNETES = "kubernetes"
    KSERVE = "kserve"
    COMPOSE = "compose"
    BENTOCLOUD = "bentocloud"


@dataclass(frozen=True, slots=True)
class Extras:
    """What only one target takes: KServe's mode and canary, BentoCloud's machine."""

    mode: Mode = Mode.STANDARD
    canary: Canary | None = None
    instance_type: str | None = None


def manifests(
    plan: ManifestPlan, target: ManifestTarget, extras: Extras | None = None
) -> dict[str, str]:
    """The text of each file by its name; INVALID_INPUT for what the target cannot do."""
    extras = extras or Extras()
    if target is not ManifestTarget.BENTOCLOUD and not plan.image:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{target} runs images, and none was given",
            f"Make one of the Bento with `mlctl containerize {plan.model.tag}`, push it, and "
            "give what the registry calls it: --image REGISTRY/NAME@sha256:DIGEST.",
        )
    found: dict[str, list[dict[str, Any]]]
    match target:
        case ManifestTarget.KUBERNETES:
            found = kubernetes.files(plan)
        case ManifestTarget.KSERVE:
            found = kserve.files(plan, extras.mode, extras.canary)
        case ManifestTarget.COMPOSE:
            found = compose.files(plan)
        case ManifestTarget.BENTOCLOUD:
            found = bentocloud.files(plan, extras.instance_type)
    return render(plan, found)
