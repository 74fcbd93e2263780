"""A whole deployment behind HAProxy: up, a promotion under load, down."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from rollout import deployments
from rollout.launcher import free_ports
from rollout.model import Colour, Outcome
from tests.support.rollouts import Load, quick_settings, quick_spec, revision, story

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed"),
]


def test_a_promotion_behind_haproxy_costs_no_request(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not `home`: the path of a socket must be short.
    monkeypatch.setenv("MLCTL_HOME", str(tmp_path_factory.mktemp("h")))
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
