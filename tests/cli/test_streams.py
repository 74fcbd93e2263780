"""What a run of a stream says where nobody watches it live."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlctl.cli.output import CommandOutput
from mlctl.cli.runners.stream import event_display
from mlctl.services.stream.events import StreamEvent, StreamPhase, StreamTotals


def test_event_display__idle__is_reported_once_per_lag(capsys: pytest.CaptureFixture[str]) -> None:
    idle = StreamEvent(StreamPhase.IDLE, StreamTotals(3, 1), 1.0, {"0": 0})
    with event_display(CommandOutput(as_json=False)) as shown:
        for minute in range(5):
            shown(replace(idle, seconds=60.0 * minute + 1))
        shown(replace(idle, seconds=400.0, lag={"0": 7}))
        shown(replace(idle, seconds=500.0, lag={"0": 0}))
        shown(StreamEvent(StreamPhase.FINISHED, StreamTotals(3, 1), 600.0, {"0": 0}))
    told = capsys.readouterr().err.splitlines()
    assert [line.split(", ")[2] for line in told] == [
        "lag 0",
        "lag 7",
        "lag 0",
        "lag 0",
    ]
