"""`mlctl up` turns its options into the settings of the deployment; nothing is started here."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Never

import pytest
from click.testing import CliRunner

from mlctl.cli.main import cli
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.rollout.client import deployments
from mlctl.rollout.domain.spec import DeploymentSettings
from tests.support.rollouts import revision


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[DeploymentSettings]:
    """The settings with which a deployment would have been started."""
    found: list[DeploymentSettings] = []

    def up(*_: object, settings: DeploymentSettings, **__: object) -> Never:
        found.append(settings)
        raise MlctlError(ErrorCode.NOT_READY, "not started")

    monkeypatch.setattr(deployments, "up", up)
    monkeypatch.setattr(
        "mlctl.rollout.client.revisions.find_revision", lambda _tag: revision("tiny:aa")
    )
    return found


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ([], {}),
        (["--ready-timeout", "30m"], {"ready_seconds": 1800.0}),
        (["--request-timeout", "5m"], {"request_seconds": 300.0}),
        (["--stream-idle-timeout", "1h"], {"stream_idle_seconds": 3600.0}),
        (["--drain-time", "0"], {"drain_seconds": 0.0}),
        (
            ["--max-replicas", "4", "--target-queue-rows", "50", "--cooldown", "10m"],
            {
                "min_replicas": 1,
                "max_replicas": 4,
                "target_queue_rows": 50,
                "cooldown_seconds": 600.0,
            },
        ),
    ],
)
def test_up__options_of_times_and_scaling__become_settings(
    started: list[DeploymentSettings], options: list[str], changed: dict[str, Any]
) -> None:
    result = CliRunner().invoke(cli, ["up", "shop", "tiny", *options])
    assert started, result.output
    assert asdict(started[0]) == {**asdict(DeploymentSettings()), **changed}


def test_up__timeout_of_a_proxy_in_a_cluster__is_rejected(
    started: list[DeploymentSettings],
) -> None:
    cluster = ["--target", "kubernetes", "--route", "shop", "--services", "blue=b,green=g"]
    rejected = CliRunner().invoke(cli, ["up", "shop", "tiny", *cluster, "--drain-time", "1s"])
    assert rejected.exit_code == 2
    assert not started
    CliRunner().invoke(cli, ["up", "shop", "tiny", *cluster, "--ready-timeout", "30m"])
    assert started[0].ready_seconds == 1800.0
