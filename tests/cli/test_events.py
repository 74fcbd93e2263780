"""`mlctl events`: the record of a deployment, without any process."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.main import cli
from rollout.client import deployments
from rollout.domain.spec import DeploymentSettings, Ports, RolloutSpec
from rollout.journal import paths
from rollout.journal.journal import Journal
from tests.support.rollouts import revision


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLCTL_HOME", str(tmp_path / "home"))
    with Journal(paths.journal()) as journal:
        journal.create("shop", Ports(1, 2), DeploymentSettings(), revision("tiny:aa"))
        rollout = journal.begin("shop", revision("tiny:bb"), RolloutSpec())
        journal.append("shop", rollout, "tick", {}, journal.take_over("shop"))


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize(
    ("options", "kinds"), [((), ["up", "requested"]), (("--ticks",), ["up", "requested", "tick"])]
)
def test_events__json__one_document_a_line(options: tuple[str, ...], kinds: list[str]) -> None:
    result = CliRunner().invoke(cli, ["events", "shop", "--json", *options])
    assert result.exit_code == 0, result.output
    documents = [json.loads(line) for line in result.stdout.splitlines()]
    assert [document["kind"] for document in documents] == kinds
    assert documents[1]["body"]["candidate"] == "tiny:bb"


@pytest.mark.usefixtures("recorded")
def test_events__text__one_line_each() -> None:
    result = CliRunner().invoke(cli, ["events", "shop"])
    assert "tiny:aa -> tiny:bb" in result.output


@pytest.mark.usefixtures("recorded")
def test_events__follow__later_events_come_too() -> None:
    found = deployments.record("shop", follow=True)
    assert [next(found).kind for _ in range(2)] == ["up", "requested"]

    def retire() -> None:
        with Journal(paths.journal()) as journal:
            journal.retire("shop")

    thread = threading.Timer(0.1, retire)
    thread.start()
    assert [next(found).kind for _ in range(2)] == ["ended", "down"]
    thread.join()


@pytest.mark.usefixtures("recorded")
def test_events__unknown_deployment__not_found() -> None:
    assert CliRunner().invoke(cli, ["events", "farm"]).exit_code == 3
