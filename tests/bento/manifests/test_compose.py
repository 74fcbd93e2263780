from __future__ import annotations

import socket
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from mlctl.bento.manifests.plan import ManifestPlan
from mlctl.bento.manifests.targets import ManifestTarget
from tests.bento.manifests.example_plans import FULL, PLAN, documents
from tests.support.schemas import compose_faults, mutants


def made(plan: ManifestPlan) -> Any:
    return documents(plan, ManifestTarget.COMPOSE)["compose.yaml"]


def test_compose__plain_and_full_plan__match_the_specification() -> None:
    for plan in (PLAN, FULL):
        assert not compose_faults(made(plan))


def test_compose__one_wrong_field_or_value__violates_the_specification() -> None:
    assert not [what for what, mutant in mutants(made(FULL)) if not compose_faults(mutant)]


def test_compose__server__has_no_privileges_and_listens_on_loopback() -> None:
    server = made(FULL)["services"]["shop"]
    assert server["read_only"] is True
    assert server["cap_drop"] == ["ALL"]
    assert server["user"] == "65532:65532"
    assert all(port.startswith("127.0.0.1:") for port in server["ports"])
    assert server["secrets"] == [{"source": "tokens", "target": "/etc/mlctl/token/tokens"}]
    assert server["environment"]["MLCTL_TOKEN_FILE"] == "/etc/mlctl/token/tokens"


def test_compose__dollar_in_a_setting__is_not_interpolated() -> None:
    plan = replace(PLAN, settings={"MLCTL_SAMPLE_REDACT": "a$b"})
    assert made(plan)["services"]["shop"]["environment"]["MLCTL_SAMPLE_REDACT"] == "a$$b"


@pytest.mark.slow
def test_compose__health_check_of_a_closed_port__fails() -> None:
    word, *command = made(PLAN)["services"]["shop"]["healthcheck"]["test"]
    assert word == "CMD"
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        command[-1] = command[-1].replace(":3000/", f":{port}/")
        assert f":{port}/readyz" in command[-1]
        assert command[0] == "python"
        local = [sys.executable, *command[1:]]
        done = subprocess.run(local, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "refused" in done.stderr
