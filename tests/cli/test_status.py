"""What `mlctl status` says of the processes of a deployment."""

from __future__ import annotations

import pytest

from cli.commands.status import running_line


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
def test_a_sleeping_deployment_is_told_from_one_that_serves(
    running: dict[str, bool], said: str
) -> None:
    assert running_line(running) == said
