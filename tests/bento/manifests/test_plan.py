from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from bento.containers.containerfile import Image, containerfile
from bento.manifests.plan import Edge, ManifestLayout, ManifestSlot, Scaling, name_of, settings_of
from bento.manifests.targets import ManifestTarget, manifests
from bundle.errors import ErrorCode, MlctlError
from tests.bento.manifests.plans import PLAN


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": "Shop"}, "'Shop'"),
        ({"name": "s" * 60}, "too long"),
        ({"image": "a b"}, "the image"),
        ({"namespace": "a/b"}, "'a/b'"),
        ({"settings": {"MLCTL_GRPC_PORT": "1"}}, "the manifests decide it"),
        ({"settings": {"MLCTL_TOKEN": "x"}}, "the manifests decide it"),
        ({"settings": {"MLCTL_PRECOMPUTED_STORE": "postgresql://u:p@h/d"}}, "has a password"),
        ({"settings": {"MLCTL_PRECOMPUTED_STORE": "redis://:p/w@h/0"}}, "has a password"),
        (
            {"settings": {"MLCTL_PRECOMPUTED_STORE": "postgresql://u@h/d?password=p"}},
            "has a password",
        ),
        ({"layout": ManifestLayout.SINGLE, "only": ManifestSlot.BLUE}, "leave out --slot"),
        ({"edge": Edge("g", (), "grpc.example")}, "moves no GRPCRoute"),
    ],
)
def test_what_no_cluster_would_take(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(MlctlError, match=said) as caught:
        replace(PLAN, **changes)
    assert caught.value.code is ErrorCode.INVALID_INPUT


def test_a_placeholder_is_no_image_and_the_form_is_told() -> None:
    with pytest.raises(MlctlError, match="'REGISTRY/digits:1' is not one") as caught:
        replace(PLAN, image="REGISTRY/digits:1")
    assert "HOST/NAME:TAG" in caught.value.hint


@pytest.mark.parametrize(
    "make",
    [
        lambda: Scaling(0),
        lambda: Scaling(3, 2),
        lambda: Scaling(1, None, "up"),
        lambda: Edge(None, ("shop.example.com",)),
        lambda: Edge("g", ("-x",)),
        lambda: Edge("g", ("x",), "x"),
        lambda: Edge("a/b/c"),
        lambda: Edge(allow=("10.0.0.0/99",)),
        lambda: settings_of(("MLCTL_WORKERS",)),
        lambda: settings_of(("MLCTL_NO_SUCH=1",)),
        lambda: settings_of(("WORKERS=1",)),
        lambda: settings_of(("MLCTL_WORKERS=0",)),
        lambda: settings_of(("MLCTL_WORKERS=many",)),
    ],
)
def test_what_does_not_fit_together(make: Any) -> None:
    with pytest.raises(MlctlError) as caught:
        make()
    assert caught.value.code is ErrorCode.INVALID_INPUT


def test_settings_are_those_of_the_server() -> None:
    given = ("MLCTL_WORKERS=2", "MLCTL_TENSORRT_LENGTHS=1:2:3", "MLCTL_CUDA_GRAPHS=yes")
    assert settings_of(given) == dict(each.split("=") for each in given)


@pytest.mark.parametrize(
    "target", [ManifestTarget.KUBERNETES, ManifestTarget.KSERVE, ManifestTarget.COMPOSE]
)
def test_without_an_image_it_says_how_to_get_one(target: ManifestTarget) -> None:
    with pytest.raises(MlctlError) as caught:
        manifests(replace(PLAN, image=""), target)
    assert f"mlctl containerize {PLAN.model.tag}" in caught.value.hint


def test_names_of_models_become_names_of_clusters() -> None:
    assert name_of("my_model.v2") == "my-model-v2"
    assert len(name_of("a" * 63)) == 57


def test_the_environment_is_that_of_the_image() -> None:
    text = containerfile(Image("python:3.11-slim", {}))
    inside = dict(re.findall(r"^ENV (\w+)=(.*)$", text, re.MULTILINE))
    assert PLAN.environment.items() <= inside.items()
