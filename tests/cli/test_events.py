"""What a deployment reports of its rollouts: events, metrics, webhooks."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result

from bundle.ports import free_ports
from cli.main import cli
from rollout.client import deployments
from tests.support.receiver import receiving
from tests.support.rollouts import Load, quick_settings, quick_spec, revision


def run(*arguments: str) -> Result:
    """A command in this process, without a terminal."""
    return CliRunner().invoke(cli, arguments)


@pytest.mark.slow
def test_events__promoted_rollout__is_in_each_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLCTL_HOME", str(tmp_path))
    monkeypatch.setenv("MLCTL_WEBHOOK_SECRET", "hush")
    port, metrics = free_ports(2)
    with receiving() as receiver:
        settings = replace(quick_settings(), metrics_port=metrics, webhooks=(receiver.url,))
        deployments.up("shop", revision("tiny:aa"), port, settings=settings)
        try:
            with Load(port):
                rollout = deployments.promote("shop", revision("tiny:bb"), quick_spec())
                assert [*deployments.follow("shop", rollout)]
            lines = run("events", "shop").stdout
            assert re.search(r"shift +50 %", lines), lines
            assert "promoted" in lines
            (found,) = json.loads(run("status", "shop", "--json").stdout)["deployments"]
            assert found["metrics"] == f"http://127.0.0.1:{metrics}/metrics"
            assert "secret-part" not in str(found)
            scraped = httpx.get(found["metrics"], trust_env=False).text
            promoted = 'mlctl_rollout_ended_total{deployment="shop",outcome="promoted"} 1.0'
            assert promoted in scraped
        finally:
            deployments.down("shop")
        assert receiver.taken[0] == "deployment.up"
        assert receiver.taken[-2:] == ["rollout.promoted", "deployment.down"]
        assert all("webhook-signature" in each.headers for each in receiver.deliveries)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("up", "shop", "digits:1", "--metrics-port", "0"), "--metrics-port"),
        (("split", "shop"), "give the shares of two Bentos"),
        (("split", "shop", "a"), "write a share as BENTO=PERCENT"),
        (("split", "shop", "a=1", "--end"), "--end takes no shares"),
        (("split", "shop", "a=1", "--keep", "a"), "--keep needs --end"),
    ],
)
def test_command__contradictory_options__are_rejected(
    arguments: tuple[str, ...], words: str
) -> None:
    result = run(*arguments)
    assert (result.exit_code, words in result.output) == (2, True)
