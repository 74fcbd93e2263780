"""When `--until-empty` is at its end, and when it is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bundle.clock import ManualClock
from bundle.errors import ErrorCode, MlctlError
from services.stream.base import LinkRequest, Message, Place, TakingOver
from services.stream.bridge import connect
from services.stream.engine import Report
from services.stream.events import Phase
from tests.services.stream.test_engine import AWAY, Hasty, MemoryLink, plain, pump_of, stream_of


@dataclass
class SilentLink(MemoryLink):
    """Gives nothing for so many seconds of a clock, as while a killed member keeps its messages."""

    clock: ManualClock = field(default_factory=ManualClock)
    silent_s: float = 0.0
    has_partitions: bool = True
    takeover_s: float = 0.0
    step_s: float = 0.3

    def poll(self, limit: int, wait_s: float) -> Sequence[Message]:
        if limit and self.clock.monotonic() < self.silent_s:
            self.clock.advance(1.0)
            if self.before_poll and (act := self.before_poll.popleft()):
                act(self)
            return []
        self.clock.advance(self.step_s)
        return MemoryLink.poll(self, limit, wait_s)

    def lag(self) -> Mapping[str, int]:
        return MemoryLink.lag(self) if self.has_partitions else {}


def ran_silently(link: SilentLink, **settings: object) -> Report:
    pump, _events = pump_of(link, **settings)  # type: ignore[arg-type]
    pump.clock, pump.stop = link.clock, Hasty()
    # The clock was another one when it began.
    pump._began = pump._heard = link.clock.monotonic()
    return pump.run()


def test_the_end_is_not_there_while_a_killed_member_holds_messages() -> None:
    link = SilentLink(stream_of(plain(5)), silent_s=40.0)
    report = ran_silently(link)
    assert (report.totals.answers, report.complete) == (5, True)


def test_the_end_tells_what_is_left_then(monkeypatch: pytest.MonkeyPatch) -> None:
    left = iter([4])  # when it is first asked, and nothing later
    link = SilentLink(stream_of(plain(6)), step_s=0.1)
    monkeypatch.setattr(SilentLink, "lag", lambda _link: {"0": next(left, 0)})
    pump, events = pump_of(link)
    pump.clock, pump.stop = link.clock, Hasty()
    pump._began = pump._heard = link.clock.monotonic()
    pump.run()
    told = [(event.phase, event.lag) for event in events]
    assert (Phase.COMMITTED, {"0": 4}) in told
    assert told[-1] == (Phase.FINISHED, {"0": 0})


def test_messages_that_nobody_gives_are_no_end() -> None:
    with pytest.raises(MlctlError, match="5 messages are left") as caught:
        ran_silently(SilentLink(stream_of(plain(5)), silent_s=1e9), patience=60.0)
    assert caught.value.code is ErrorCode.BROKER_UNAVAILABLE


def test_a_member_without_partitions_ends_but_not_for_a_broker_that_was_away() -> None:
    link = SilentLink(stream_of(()), has_partitions=False, silent_s=1e9)
    report = ran_silently(link)
    assert report.complete
    assert 45.0 <= report.seconds < 60.0

    def away(each: MemoryLink) -> None:
        assert isinstance(each, SilentLink)
        each.clock.advance(100.0)
        raise AWAY

    link = SilentLink(stream_of(plain(5)), has_partitions=False, silent_s=140.0, step_s=3.0)
    link.before_poll.extend([None, away])
    report = ran_silently(link)
    assert report.totals.answers == 5


@pytest.mark.parametrize("has_partitions", [True, False])
def test_a_longer_time_until_others_take_over_is_waited_for(*, has_partitions: bool) -> None:
    link = SilentLink(stream_of(plain(5)), silent_s=200.0, has_partitions=has_partitions)
    link.takeover_s, link.step_s = 180.0, 10.0
    report = ran_silently(link, patience=60.0)
    assert (report.totals.answers, report.complete) == (5, True)
    # Without partitions it ends once nothing came for as long.
    assert has_partitions or 270.0 <= report.seconds - link.silent_s < 310.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("sqlite://{folder}/a.db?lease=90#x", 90.0),
        ("kafka://localhost:9?session.timeout.ms=90000#x", 90.0),
        ("redis://localhost:9?idle_s=90#x", 90.0),
    ],
)
def test_links_say_when_others_take_over(tmp_path: Path, text: str, seconds: float) -> None:
    source = Place.parse(text.format(folder=tmp_path))
    for target in (source.named("out"), Place("file", str(tmp_path / "out"))):
        link = connect(LinkRequest(source, "g", target))
        assert isinstance(link, TakingOver)
        assert link.takeover_s == seconds
