"""When `--until-empty` is at its end, and when it is not."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlencode

import pytest

from mlctl.core.clock import SystemClock
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.stream.answer_headers import AnswerHeaders
from mlctl.services.stream.base import Commit, ConnectionRequest, Message, Outgoing, StreamUrl
from mlctl.services.stream.engine import RunSettings, StreamEngine, StreamReport
from mlctl.services.stream.events import StreamPhase
from mlctl.services.stream.scoring import MessageScorer
from mlctl.services.stream.transports.bridge import connect
from tests.services.precomputed.servers import redis_server
from tests.services.stream.contract import numbers, read, send, take
from tests.services.stream.test_engine import (
    AWAY,
    Hasty,
    MemoryConnection,
    plain,
    pump_of,
    stream_of,
)
from tests.services.stream.test_scoring import Doubling, Numbers
from tests.support.clock import ManualClock
from tests.support.kafka import MockKafka


@dataclass
class SilentConnection(MemoryConnection):
    """Gives nothing for so many seconds of a clock, as while a killed member keeps its messages."""

    clock: ManualClock = field(default_factory=ManualClock)
    silent_s: float = 0.0
    has_partitions: bool = True
    takeover: float = 0.0
    step_s: float = 0.3
    # What the first calls of group_lag() return.
    groups_lag: deque[int] = field(default_factory=deque)

    def poll(self, limit: int, wait_s: float) -> Sequence[Message]:
        if limit and self.clock.monotonic() < self.silent_s:
            self.clock.advance(1.0)
            if self.before_poll and (act := self.before_poll.popleft()):
                act(self)
            return []
        self.clock.advance(self.step_s)
        return MemoryConnection.poll(self, limit, wait_s)

    @property
    def takeover_s(self) -> float:
        return self.takeover

    def lag(self) -> Mapping[str, int]:
        return MemoryConnection.lag(self) if self.has_partitions else {}

    def group_lag(self) -> int:
        return self.groups_lag.popleft() if self.groups_lag else MemoryConnection.group_lag(self)


def ran_silently(link: SilentConnection, **settings: object) -> StreamReport:
    pump, _events = pump_of(link, **settings)  # type: ignore[arg-type]
    pump.clock, pump.stop = link.clock, Hasty()
    # The clock was another one when it began.
    pump._began = pump._active = link.clock.monotonic()
    return pump.run()


def test_until_empty__killed_member_holds_messages__waits() -> None:
    link = SilentConnection(stream_of(plain(5)), silent_s=40.0)
    report = ran_silently(link)
    assert (report.totals.answers, report.complete) == (5, True)


def test_until_empty__end_of_the_run__reports_the_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    left = iter([4])  # 4 for the first call, then 0
    link = SilentConnection(stream_of(plain(6)), step_s=0.1)
    monkeypatch.setattr(SilentConnection, "lag", lambda _link: {"0": next(left, 0)})
    pump, events = pump_of(link)
    pump.clock, pump.stop = link.clock, Hasty()
    pump._began = pump._active = link.clock.monotonic()
    pump.run()
    told = [(event.phase, event.lag) for event in events]
    assert (StreamPhase.COMMITTED, {"0": 4}) in told
    assert told[-1] == (StreamPhase.FINISHED, {"0": 0})


def test_until_empty__messages_left_and_no_commit__ends_with_an_error() -> None:
    link = SilentConnection(stream_of(plain(5)), silent_s=1e9, has_partitions=False)
    with pytest.raises(MlctlError, match="5 messages left") as caught:
        ran_silently(link, patience_s=60.0)
    assert caught.value.code is ErrorCode.BROKER_UNAVAILABLE
    assert 60.0 <= link.clock.monotonic() < 70.0


def test_until_empty__others_commit_slowly__waits_without_an_error() -> None:
    link = SilentConnection(stream_of(()), has_partitions=False, silent_s=1e9)
    link.groups_lag.extend(left for left in range(20, 0, -1) for _ in range(30))
    report = ran_silently(link, patience_s=60.0)
    assert (report.totals.messages, report.complete) == (0, True)
    assert link.clock.monotonic() > 550.0


def test_until_empty__no_partition_and_nothing_left__ends_at_once() -> None:
    report = ran_silently(SilentConnection(stream_of(()), has_partitions=False))
    assert report.complete
    assert report.seconds < 2.0


def test_until_empty__broker_was_unavailable__that_time_is_not_counted() -> None:
    def away(each: MemoryConnection) -> None:
        assert isinstance(each, SilentConnection)
        each.clock.advance(50.0)
        raise AWAY

    link = SilentConnection(stream_of(plain(5)), has_partitions=False, silent_s=100.0, step_s=3.0)
    link.before_poll.extend([None, away])
    assert ran_silently(link, patience_s=60.0).totals.answers == 5


@pytest.mark.parametrize("has_partitions", [True, False])
def test_until_empty__longer_takeover_time__is_waited_for(*, has_partitions: bool) -> None:
    link = SilentConnection(stream_of(plain(5)), silent_s=200.0, has_partitions=has_partitions)
    link.takeover, link.step_s = 180.0, 10.0
    report = ran_silently(link, patience_s=60.0)
    assert (report.totals.answers, report.complete) == (5, True)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("sqlite://{folder}/a.db?lease=90#x", 90.0),
        ("kafka://localhost:9?session.timeout.ms=90000#x", 90.0),
        ("redis://localhost:9?idle_s=90#x", 90.0),
    ],
)
def test_until_empty__transport__says_when_others_take_over(
    tmp_path: Path, text: str, seconds: float
) -> None:
    source = StreamUrl.parse(text.format(folder=tmp_path))
    for target in (source.with_topic("out"), StreamUrl("file", str(tmp_path / "out"))):
        link = connect(ConnectionRequest(source, "g", target))
        assert link.takeover_s == seconds


class FastClock(SystemClock):
    """A clock on which minutes pass in a second: what waits for a time waits for little of it."""

    def monotonic(self) -> float:
        return 300.0 * super().monotonic()


def run_until_empty(source: StreamUrl, answers: StreamUrl) -> StreamReport:
    """Run over a real link, on a clock that would long have lost its patience with silence."""
    request = ConnectionRequest(source, "g", answers)
    scorer = MessageScorer(Doubling(), Numbers())
    settings = RunSettings(until_empty=True, patience_s=1e9)
    with connect(request) as link:
        stamp = AnswerHeaders(source, "tiny", "d" * 64)
        return StreamEngine(
            link, scorer, stamp, settings, lambda _event: None, clock=FastClock()
        ).run()


@pytest.fixture(params=["sqlite", "kafka", "redis"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StreamUrl]:
    """A stream of one partition at a real broker, whose members are given up after a while."""
    if request.param == "sqlite":
        yield StreamUrl.parse(f"sqlite://{tmp_path / 'events.db'}?lease=0.6#in")
    elif request.param == "redis":
        with redis_server(tmp_path) as server:
            yield StreamUrl.parse(f"{server.url}?idle_s=0.6#in")
    else:
        cluster = MockKafka()
        for topic in ("in", "out"):
            cluster.create(topic, 1)
        options = "session.timeout.ms=1400&heartbeat.interval.ms=50&fetch.wait.max.ms=20"
        yield StreamUrl.parse(f"kafka://{cluster.address}?{options}#in")
        cluster.close()


def check_answers(answers: StreamUrl, count: int) -> None:
    assert numbers(read(answers)) == sorted(2 * int(each) for each in plain(count))


@pytest.mark.slow
@pytest.mark.parametrize("source", ["sqlite", "redis"], indirect=True)
def test_until_empty__peer_holds_the_only_partition__waits_for_its_commit(
    source: StreamUrl,
) -> None:
    source = replace(source, options={})  # Nobody is given up.
    answers = source.with_topic("out")
    send(source, [Outgoing(each) for each in plain(30)])
    request = ConnectionRequest(source, "g", answers)
    with connect(request) as peer, ThreadPoolExecutor() as pool:
        held = take(peer, 30)
        idle = pool.submit(run_until_empty, source, answers)
        # Many times as long as the member without messages waited before.
        deadline = time.monotonic() + 1.5
        while time.monotonic() < deadline:
            assert not idle.done(), "it ended, and the peer's messages were left"
            assert not peer.poll(0, 0.02)
        peer.commit(Commit(held, [Outgoing(b"%d" % (2 * int(each.content))) for each in held]))
        while not idle.done():
            peer.poll(0, 0.02)
        report = idle.result()
    assert (report.totals.messages, report.complete) == (0, True)
    check_answers(answers, 30)


_VICTIM = """
import sys, time
from mlctl.services.stream.base import Commit, ConnectionRequest, Outgoing, StreamUrl
from mlctl.services.stream.transports.bridge import connect
from tests.services.stream.contract import take

source, answers = map(StreamUrl.parse, sys.argv[1:])
with connect(ConnectionRequest(source, "g", answers)) as link:
    done = take(link, 30)[:5]
    link.commit(Commit(done, [Outgoing(b"%d" % (2 * int(each.value))) for each in done]))
    print("ready", flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_until_empty__peer_is_killed__takes_its_messages_over(source: StreamUrl) -> None:
    answers = source.with_topic("out")
    send(source, [Outgoing(each) for each in plain(30)])
    texts = [
        f"{each.scheme}://{each.address}?{urlencode(each.options)}#{each.topic}"
        for each in (source, answers)
    ]
    command = [sys.executable, "-c", _VICTIM, *texts]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE) as victim,
        ThreadPoolExecutor() as pool,
    ):
        try:
            assert victim.stdout is not None
            assert victim.stdout.readline() == b"ready\n"
            idle = pool.submit(run_until_empty, source, answers)
        finally:
            victim.kill()
        report = idle.result()
    assert (report.totals.answers, report.complete) == (25, True)
    check_answers(answers, 30)
