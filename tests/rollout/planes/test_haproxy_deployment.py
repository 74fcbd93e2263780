"""A whole deployment behind HAProxy: up, a promotion under load, down."""

from __future__ import annotations

import shlex
import shutil
from dataclasses import replace
from functools import partial

import grpc
import pytest

from rollout import deployments
from rollout.local.fleet import replicas_of
from rollout.local.launcher import free_ports
from rollout.model import Colour, Outcome
from rollout.state import places
from rollout.state.journal import Journal
from tests.support.rollouts import Load, quick_settings, quick_spec, revision, story
from tests.support.wait import PATIENCE_SECONDS, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed"),
]


@pytest.fixture(autouse=True)
def short_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not `home`: the path of a socket must be short."""
    monkeypatch.setenv("MLCTL_HOME", str(tmp_path_factory.mktemp("h")))


def test_a_promotion_behind_haproxy_costs_no_request() -> None:
    (port,) = free_ports(1)
    settings = replace(quick_settings(), proxy="haproxy")
    deployments.up("shop", revision("tiny:aa"), port, settings=settings)
    try:
        with Load(port) as load:
            rollout = deployments.promote("shop", revision("tiny:bb"), quick_spec())
            events = list(deployments.follow("shop", rollout))
        (status,) = deployments.status("shop")
    finally:
        deployments.down("shop")
    assert events[-1].body["outcome"] == Outcome.PROMOTED, story(events)
    assert load.failed == 0, load.answers
    assert status.weights == {Colour.BLUE: 0, Colour.GREEN: 100}


def asleep(name: str) -> bool:
    with Journal(places.journal()) as journal:
        return replicas_of(journal, name, Colour.BLUE) == {}


def test_a_call_over_grpc_waits_for_a_bento_that_wakes_slowly() -> None:
    (port,) = free_ports(1)
    usual = quick_settings()
    # Longer than HAProxy otherwise waits for a server.
    slowly = ("/bin/sh", "-c", f"sleep 2; exec {shlex.join(usual.serve)}")
    settings = replace(
        usual, serve=slowly, proxy="haproxy", min_replicas=0, max_replicas=1, idle_seconds=0.5
    )
    deployments.up("shop", revision("tiny:aa"), port, settings=settings)
    try:
        wait_until(partial(asleep, "shop"))
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:  # type: ignore[no-untyped-call]
            ask = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            assert ask(b"hello", timeout=PATIENCE_SECONDS) == b"hello"
    finally:
        deployments.down("shop")
