from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from mlctl.bento.containers.containerfile import Image, containerfile
from mlctl.bento.manifests.plan import (
    ManifestLayout,
    ManifestSlot,
    NetworkAccess,
    Scaling,
    name_of,
    settings_of,
)
from mlctl.bento.manifests.targets import ManifestTarget, manifests
from mlctl.core.errors import ErrorCode, MlctlError
from tests.bento.manifests.example_plans import PLAN


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"name": "Shop"}, "'Shop' is not a valid name"),
        ({"name": "s" * 60}, "60 characters"),
        ({"image": "a b"}, "'a b' is not a valid reference"),
        ({"namespace": "a/b"}, "'a/b'"),
        ({"settings": {"MLCTL_GRPC_PORT": "1"}}, "the manifests set this variable"),
        ({"settings": {"MLCTL_TOKEN": "x"}}, "the manifests set this variable"),
        (
            {"settings": {"MLCTL_PRECOMPUTED_STORE": "postgresql://u:p@h/d"}},
            "the value has a password",
        ),
        ({"settings": {"MLCTL_PRECOMPUTED_STORE": "redis://:p/w@h/0"}}, "the value has a password"),
        (
            {"settings": {"MLCTL_PRECOMPUTED_STORE": "postgresql://u@h/d?password=p"}},
            "the value has a password",
        ),
        ({"layout": ManifestLayout.SINGLE, "slot": ManifestSlot.BLUE}, "leave out --slot"),
        ({"access": NetworkAccess("g", (), "grpc.example")}, "does not move a GRPCRoute"),
    ],
)
def test_plan__invalid_value__is_rejected(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(MlctlError, match=reason) as caught:
        replace(PLAN, **changes)
    assert caught.value.code is ErrorCode.INVALID_INPUT


def test_plan__placeholder_image__is_rejected_with_the_form() -> None:
    with pytest.raises(MlctlError, match="'REGISTRY/digits:1' is not a valid reference") as caught:
        replace(PLAN, image="REGISTRY/digits:1")
    assert "HOST/NAME:TAG" in caught.value.hint


@pytest.mark.parametrize(
    "make",
    [
        lambda: Scaling(0),
        lambda: Scaling(3, 2),
        lambda: Scaling(1, None, "up"),
        lambda: NetworkAccess(None, ("shop.example.com",)),
        lambda: NetworkAccess("g", ("-x",)),
        lambda: NetworkAccess("g", ("x",), "x"),
        lambda: NetworkAccess("a/b/c"),
        lambda: NetworkAccess(allow=("10.0.0.0/99",)),
        lambda: settings_of(("MLCTL_WORKERS",)),
        lambda: settings_of(("MLCTL_NO_SUCH=1",)),
        lambda: settings_of(("WORKERS=1",)),
        lambda: settings_of(("MLCTL_WORKERS=0",)),
        lambda: settings_of(("MLCTL_WORKERS=many",)),
    ],
)
def test_plan__contradicting_values__are_rejected(make: Any) -> None:
    with pytest.raises(MlctlError) as caught:
        make()
    assert caught.value.code is ErrorCode.INVALID_INPUT


def test_settings__valid_pairs__are_returned() -> None:
    given = ("MLCTL_WORKERS=2", "MLCTL_TENSORRT_LENGTHS=1:2:3", "MLCTL_PROXIED=yes")
    assert settings_of(given) == dict(each.split("=") for each in given)


@pytest.mark.parametrize(
    "target", [ManifestTarget.KUBERNETES, ManifestTarget.KSERVE, ManifestTarget.COMPOSE]
)
def test_manifests__without_an_image__hint_names_containerize(target: ManifestTarget) -> None:
    with pytest.raises(MlctlError) as caught:
        manifests(replace(PLAN, image=""), target)
    assert f"mlctl containerize {PLAN.model.tag}" in caught.value.hint


def test_name_of__dots_and_length__become_a_label() -> None:
    assert name_of("my_model.v2") == "my-model-v2"
    assert len(name_of("a" * 63)) == 57


def test_plan__environment__agrees_with_the_image() -> None:
    text = containerfile(Image("shop:3f2a", "python:3.11-slim", {}))
    inside = dict(re.findall(r"^ENV (\w+)=(.*)$", text, re.MULTILINE))
    assert PLAN.environment.items() <= inside.items()
