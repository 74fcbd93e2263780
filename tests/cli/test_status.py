"""What `mlctl status` says of the processes of a deployment."""

from __future__ import annotations

import pytest

from mlctl.cli.commands.status import running_line


@pytest.mark.parametrize(
    ("running", "said"),
    [
        ({"daemon": True, "proxy": True, "blue/0": True}, "all processes"),
        ({"daemon": True, "proxy": False, "blue/0": False}, "not: blue/0, proxy"),
        ({"daemon": True, "proxy": True, "activator": True, "blue/0": True}, "all processes"),
        (
            {"daemon": True, "proxy": True, "activator": True},
            "no replica: it sleeps, and the next request wakes it",
        ),
        ({"daemon": True, "proxy": True, "activator": False}, "not: activator"),
    ],
)
def test_status__deployment_at_zero_replicas__is_shown_as_asleep(
    running: dict[str, bool], said: str
) -> None:
    assert running_line(running) == said
