from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mlctl.rollout.domain.kubernetes_target import KubernetesTarget
from tests.support.kube import FakeKube, FakePod, kube, route

BLUE_DIGEST, GREEN_DIGEST = "a" * 64, "b" * 64


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[FakeKube, KubernetesTarget]]:
    """A cluster with one route and two pods of each slot, and how it is reached."""
    with kube(tmp_path) as (state, config):
        state.put("httproutes", route())
        for slot, digest in (("blue", BLUE_DIGEST), ("green", GREEN_DIGEST)):
            pods = [FakePod(f"{slot}-{number}", digest) for number in range(2)]
            state.pods[f"shop-{slot}"] = pods
        yield (
            state,
            KubernetesTarget("shop", "web", "shop-blue", "shop-green", kubeconfig=str(config)),
        )


@pytest.fixture
def state(cluster: tuple[FakeKube, KubernetesTarget]) -> FakeKube:
    return cluster[0]


@pytest.fixture
def target(cluster: tuple[FakeKube, KubernetesTarget]) -> KubernetesTarget:
    return cluster[1]
