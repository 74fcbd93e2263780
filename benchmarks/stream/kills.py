"""Streams whose runs are killed (SIGKILL) at random moments: each message is answered.

Two runs of one group answer waves of messages, and one or both of them are killed in each wave.
Runs have `--until-empty`: one that ends by itself must not leave a message unanswered.
"""

from __future__ import annotations

import multiprocessing
import random
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import orjson

from benchmarks.result import BenchmarkResult
from mlctl.bundle.verify import verify
from mlctl.services.stream.base import ConnectionRequest, Message, Outgoing, StreamUrl
from mlctl.services.stream.batching import BatchGoals
from mlctl.services.stream.engine import RunSettings
from mlctl.services.stream.payloads import PayloadRequest
from mlctl.services.stream.start import StreamConfig, run_stream
from mlctl.services.stream.transports import transport_of
from tests.services.precomputed.servers import redis_server
from tests.support.bundles import make_bundle
from tests.support.tansu import committed_values, create_topics, tansu_broker

_WAVE = 300
_BATCH = 8
# Every so many messages one cannot be answered.
_POISON = 50
_PATIENCE_SECONDS = 120.0
_PARTITIONS = 2
# Modules that runs would otherwise import for longer than they live.
_PRELOADED = [
    __name__,
    "onnxruntime",
    *(f"mlctl.services.stream.transports.{name}" for name in ("kafka", "redis", "sqlite")),
]
# A run that joins waits for the session timeout of one that was killed.
_TANSU = "session.timeout.ms=1500&heartbeat.interval.ms=300&transaction.timeout.ms=3000"
# The shortest session that a broker admits by default.
_CLUSTER = "session.timeout.ms=6000&transaction.timeout.ms=6000"
# So many that Kafka's runs answer for longer than they join.
_KAFKA_WAVE = 1000


@dataclass(frozen=True, slots=True)
class KilledStream:
    """A stream under test; `runs` are those of its group that answer at the same time.

    Without `until_empty` the broker does not report the end of a topic, so runs are stopped once
    all messages have an answer. `read` returns the messages of a topic; there are `count`. A wave
    has `wave` messages.
    """

    request: ConnectionRequest
    read: Callable[[StreamUrl, int], Sequence[bytes]]
    runs: int = 2
    until_empty: bool = True
    wave: int = _WAVE


@dataclass(slots=True)
class KillCounts:
    """Counts over all waves: runs that ended by themselves, and those that left messages."""

    kills: int = 0
    ended: int = 0
    early: int = 0
    failed: int = 0


Opened = Callable[[Path], AbstractContextManager[KilledStream]]


def _stored(url: StreamUrl, _count: int) -> list[bytes]:
    found: Iterator[Message] = transport_of(url).browse(url)
    return [each.content for each in found]


@contextmanager
def _sqlite(folder: Path) -> Iterator[KilledStream]:
    yield KilledStream(_request(f"sqlite://{folder}/events.db?lease=0.5"), _stored)


@contextmanager
def _redis(folder: Path) -> Iterator[KilledStream]:
    with redis_server(folder) as server:
        yield KilledStream(_request(f"{server.url}?idle_s=0.5"), _stored)


@contextmanager
def _files(folder: Path) -> Iterator[KilledStream]:
    source, answers, dead = (
        StreamUrl.parse(str(folder / f"{name}.jsonl")) for name in ("in", "out", "dead")
    )
    Path(source.address).touch()
    # One process reads a file at a time.
    yield KilledStream(ConnectionRequest(source, "g", answers, dead), _stored, runs=1)


@contextmanager
def _tansu(_folder: Path) -> Iterator[KilledStream]:
    with tansu_broker() as address:
        create_topics(address, ("in", "out", "dead"), _PARTITIONS)

        def read(url: StreamUrl, count: int) -> list[bytes]:
            return committed_values(address, url.topic, _PARTITIONS, count)

        request = _request(f"kafka://{address}?{_TANSU}", exactly_once=True)
        yield KilledStream(request, read, until_empty=False, wave=_KAFKA_WAVE)


def _cluster(address: str, *, exactly_once: bool) -> Opened:
    """Return a stream on the Kafka cluster at `address`, in new topics."""

    @contextmanager
    def opened(_folder: Path) -> Iterator[KilledStream]:
        names = [f"{name}-{secrets.token_hex(4)}" for name in ("in", "out", "dead")]
        create_topics(address, names, _PARTITIONS)

        def read(url: StreamUrl, count: int) -> list[bytes]:
            return committed_values(address, url.topic, _PARTITIONS, count)

        source, answers, dead = (
            StreamUrl.parse(f"kafka://{address}?{_CLUSTER}#{name}") for name in names
        )
        group = source.topic
        request = ConnectionRequest(source, group, answers, dead, exactly_once=exactly_once)
        yield KilledStream(request, read, wave=_KAFKA_WAVE)

    return opened


STREAMS: Mapping[str, Opened] = {
    "SQLite log": _sqlite,
    "Redis": _redis,
    "files": _files,
    "Kafka (Tansu), transactions": _tansu,
}


def _request(url: str, *, exactly_once: bool = False) -> ConnectionRequest:
    source, answers, dead = (StreamUrl.parse(f"{url}#{name}") for name in ("in", "out", "dead"))
    return ConnectionRequest(source, "g", answers, dead, exactly_once=exactly_once)


def answer(request: ConnectionRequest, bundle: Path, *, until_empty: bool) -> None:
    """Answer messages in this process: `mlctl stream run` without its terminal."""
    settings = RunSettings(
        BatchGoals(messages=_BATCH),
        dead_share=1.0,
        patience_s=_PATIENCE_SECONDS,
        until_empty=until_empty,
    )
    config = StreamConfig(request, PayloadRequest(keep=("id",)), settings)
    run_stream(verify(bundle), config, lambda _event: None, threading.Event())


class KillRun:
    """Kills runs of one stream until there were `kills`; `rng` chooses the moments."""

    def __init__(self, stream: KilledStream, bundle: Path, kills: int, rng: random.Random) -> None:
        self.counts = KillCounts()
        self.sent = 0
        self._stream = stream
        self._bundle = bundle
        self._kills = kills
        self._rng = rng
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(_PRELOADED)

    def run(self) -> None:
        """Send waves of messages and kill, then let one run answer what is left."""
        longest = self._wave_seconds()
        while self.counts.kills < self._kills:
            self._send()
            runs = [self._start(number) for number in range(self._stream.runs)]
            self._kill(runs[0], longest)
            for each in runs[1:]:
                # A run whose stream has no end is stopped like one that is killed.
                if not self._stream.until_empty or self._rng.random() < 0.5:
                    self._kill(each, longest)
                else:
                    self._await_end(each)
        self._send()
        self._finish()

    def answered(self) -> Counter[int]:
        """Return how often each message was answered, by its number; AssertionError if wrong."""
        request, found = self._stream.request, Counter[int]()
        assert request.answers is not None
        for value in self._stream.read(request.answers, _answers(self.sent)):
            document = orjson.loads(value)
            number = int(document["id"])
            assert document["y"] == [2.0 * number + 4.0 * number] * 4, document
            found[number] += 1
        return found

    def dead(self) -> Counter[bytes]:
        """Return the dead letters."""
        request = self._stream.request
        assert request.dead is not None
        return Counter(self._stream.read(request.dead, self.sent - _answers(self.sent)))

    def _wave_seconds(self) -> float:
        """Return how many seconds a wave takes in a run that is not killed, with its start."""
        self._send()
        began = time.monotonic()
        self._finish()
        return time.monotonic() - began

    def _send(self) -> None:
        source = self._stream.request.source
        numbers = range(self.sent, self.sent + self._stream.wave)
        with transport_of(source).open_producer(source) as producer:
            producer.publish([Outgoing(message(number), b"%d" % number) for number in numbers])
        self.sent += self._stream.wave

    def _start(self, number: int) -> BaseProcess:
        """Start the run `number`; one with transactions ends those of its killed predecessor."""
        request = self._stream.request
        if request.exactly_once and request.answers is not None:
            options = {**request.answers.options, "transactional.id": f"{request.group}-{number}"}
            request = replace(request, answers=replace(request.answers, options=options))
        process = self._context.Process(
            target=answer,
            args=(request, self._bundle),
            kwargs={"until_empty": self._stream.until_empty},
        )
        process.start()
        return process

    def _kill(self, process: BaseProcess, longest: float) -> None:
        process.join(self._rng.uniform(0.0, longest))
        process.kill()
        process.join()
        if process.exitcode == 0:
            self._check_empty()
        else:
            self.counts.kills += process.exitcode == -9
            self.counts.failed += process.exitcode != -9

    def _await_end(self, process: BaseProcess) -> None:
        process.join()
        if process.exitcode:
            self.counts.failed += 1
        else:
            self._check_empty()

    def _check_empty(self) -> None:
        """Count a run that ended by itself although messages had no answer."""
        self.counts.ended += 1
        self.counts.early += len(self.answered()) < _answers(self.sent)

    def _finish(self) -> None:
        if self._stream.until_empty:
            self._await_end(self._start(0))
            return
        runs = [self._start(number) for number in range(self._stream.runs)]
        try:
            self.answered()
            self.dead()
        finally:
            for each in runs:
                each.kill()
                each.join()


def message(number: int) -> bytes:
    """Return the message `number`: four equal features, or in some a value that is no number."""
    x = "true" if number % _POISON == 0 else str(number)
    return f'{{"id":{number},"x":[{x},{number},{number},{number}]}}'.encode()


def _answers(sent: int) -> int:
    """Return how many of the first `sent` messages can be answered."""
    return sum(1 for number in range(sent) if number % _POISON)


def measure(
    kills: int, seed: int, folder: Path, result: BenchmarkResult, cluster: str | None = None
) -> None:
    """Add the table of `kills` kills of each transport, or of the Kafka cluster at HOST:PORT."""
    streams = STREAMS
    if cluster is not None:
        streams = {
            "Kafka, transactions": _cluster(cluster, exactly_once=True),
            "Kafka, at least once": _cluster(cluster, exactly_once=False),
        }
    bundle = folder / "bundle"
    make_bundle(bundle)
    table = result.table(
        f"streams, {kills} kills each: batches of up to {_BATCH} messages",
        *("transport", "kills", "messages", "lost", "answered twice", "dead letters"),
        *("dead letters twice", "ends of --until-empty", "of them early", "failed runs", "seconds"),
    )
    for number, (name, opened) in enumerate(streams.items()):
        stream_folder = folder / f"stream{number}"
        stream_folder.mkdir()
        began = time.monotonic()
        with opened(stream_folder) as stream:
            run = KillRun(stream, bundle, kills, random.Random(seed))
            run.run()
            answered, dead = run.answered(), run.dead()
        lost = [n for n in range(run.sent) if n % _POISON and not answered[n]]
        lost += [n for n in range(0, run.sent, _POISON) if not dead[message(n)]]
        counts = run.counts
        table.add(
            *(name, counts.kills, run.sent, len(lost), _repeated(answered), len(dead)),
            *(_repeated(dead), counts.ended, counts.early, counts.failed),
            time.monotonic() - began,
        )


def _repeated(found: Counter[int] | Counter[bytes]) -> int:
    return found.total() - len(found)
