"""The verdict over the figures of a hostile run, and that its attacks are what they say."""

from __future__ import annotations

import contextlib

import pytest

from mlctl.services.online.grpc.http2.core import Core
from mlctl.services.online.grpc.http2.events import ControlFrame, HeadersReceived, WholeCallReceived
from mlctl.services.online.grpc.http2.frames import BrokenError
from tests.hostile.attacks import ATTACKS, Attack
from tests.hostile.judge import judge, p99_ms


def test_p99__one_slow_request_of_a_hundred__is_it() -> None:
    assert p99_ms([0.001] * 99 + [0.5]) == 500


@pytest.mark.parametrize(
    ("hostile", "mebibytes", "reasons"),
    [
        ([0.02] * 200, [100, 120, 110], 0),
        ([0.02] * 199 + [0.9], [100, 120], 0),  # the machine stalled
        ([0.051] * 200, [100, 120], 1),
        ([0.02] * 200, [100, 300, 110], 1),
        ([9.0] * 200, [100, 700], 2),
    ],
)
def test_judge__figures_beside_10_ms__has_the_reasons(
    hostile: list[float], mebibytes: list[float], reasons: int
) -> None:
    assert len(judge([0.01] * 200, hostile, mebibytes)) == reasons


@pytest.mark.parametrize(
    "attack", [each for each in ATTACKS if each.transport == "grpc"], ids=lambda each: each.name
)
def test_attacks__frames_of_each__are_calls_or_charged(attack: Attack) -> None:
    core, calls, cost = Core(), 0, 0.0
    content = (attack.first + attack.repeated)[: 256 << 10]
    with contextlib.suppress(BrokenError):  # the core may end the connection of an attack
        for event in core.receive(content):
            calls += isinstance(event, HeadersReceived | WholeCallReceived)
            cost += event.cost if isinstance(event, ControlFrame) else 0.0
            for stream in list(core.streams):  # as if each call were rejected at once
                core.send_reset(stream, 8)
    assert calls > 1 or cost > 100
