"""Candidates that never fail by a server error: one hangs, one blames its callers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from mlctl.core.ports import free_ports
from mlctl.rollout.client import deployments
from mlctl.rollout.domain.spec import Outcome
from mlctl.rollout.domain.statistics.verdict import Gate
from tests.support.rollouts import Load, quick_settings, quick_spec, revision, story
from tests.support.wait import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def port() -> int:
    return free_ports(1)[0]


@pytest.fixture
def shop(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[str]:
    """A deployment of tiny:aa, or of the tag that is the fixture's parameter."""
    monkeypatch.setenv("MLCTL_HOME", str(tmp_path / "home"))
    live = revision(getattr(request, "param", "tiny:aa"))
    deployments.up("shop", live, port, settings=quick_settings())
    yield "shop"
    deployments.down("shop")


def test_rollout__candidate_hangs__is_rolled_back(shop: str, port: int) -> None:
    """Clients give up after 0.1 s, so not one of its requests is ever completed."""
    with Load(port, timeout=0.1) as load:
        spec = quick_spec(steps=(50, 100), step_seconds=60.0)
        rollout = deployments.promote(shop, revision("tiny:bb?delay=30"), spec)
        events = list(deployments.follow(shop, rollout))
    body = events[-1].body
    assert (body["outcome"], body["verdict"]["gate"]) == (
        Outcome.ROLLED_BACK,
        Gate.ERRORS_VS_LIVE,
    ), story(events)
    assert body["verdict"]["value"] > 0.9
    assert load.answers["TimeoutError"] >= 5


@pytest.mark.parametrize("shop", ["tiny:aa?delay=30&slow=0.1"], indirect=True)
def test_rollout__clients_leave_both_slots__goes_on(shop: str, port: int) -> None:
    with Load(port, clients=8, timeout=0.2) as load:
        rollout = deployments.promote(shop, revision("tiny:bb?delay=30&slow=0.1"), quick_spec())
        events = list(deployments.follow(shop, rollout))
    assert events[-1].body["outcome"] == Outcome.PROMOTED, story(events)
    assert load.answers["TimeoutError"] >= 5


def test_rollout__candidate_blames_its_callers__is_rolled_back(shop: str, port: int) -> None:
    with Load(port) as load:
        spec = quick_spec(steps=(50, 100), step_seconds=60.0)
        rollout = deployments.promote(shop, revision("tiny:bb?refuse=1"), spec)
        events = list(deployments.follow(shop, rollout))
    assert events[-1].body["outcome"] == Outcome.ROLLED_BACK, story(events)
    assert events[-1].body["verdict"]["gate"] == Gate.CLIENT_ERRORS_VS_LIVE, story(events)
    assert set(load.answers) == {"200", "404"}


@pytest.mark.parametrize(
    ("tag", "gates"),
    [
        ("tiny:bb?refuse=1", {Gate.CLIENT_ERRORS_VS_LIVE}),
        # A gRPC server knows its callers' deadline: when it ends the call before the caller
        # does, the same request is an error.
        ("tiny:bb?delay=30", {Gate.ERRORS_VS_LIVE, Gate.ERRORS_VS_LIMIT}),
    ],
)
def test_rollout__faults_over_grpc__are_rolled_back(
    shop: str, port: int, tag: str, gates: set[Gate]
) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:  # type: ignore[no-untyped-call]
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        rollout = deployments.promote(shop, revision(tag), quick_spec(steps=(50, 100)))
        wait_until(_ended(shop, rollout, lambda: infer.future(b"x", timeout=0.1).exception()))
    (*_, last) = deployments.events(shop, rollout=rollout)
    assert last.body["outcome"] == Outcome.ROLLED_BACK
    assert last.body["verdict"]["gate"] in gates


def _ended(name: str, rollout: int, send: Callable[[], object]) -> Callable[[], bool]:
    def ended() -> bool:
        for _ in range(5):
            send()
        return deployments.events(name, rollout=rollout)[-1].kind == "ended"

    return ended
