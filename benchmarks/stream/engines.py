"""One engine through a stream in a process of its own: `python -m benchmarks.stream.engines SPEC`.

Prints messages, seconds and CPU seconds from the end of the first batch to that of the last, so
that neither the start of the process nor the joining of the group counts.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from mlctl.core.garbage import rare_collection
from mlctl.services.stream.answer_headers import DIGEST, MODEL, SOURCE, STAGES
from mlctl.services.stream.base import Commit, ConnectionRequest, Message, Outgoing, StreamUrl

_SHARED = ((DIGEST, b"d" * 64), (MODEL, b"bench"), (STAGES, b"decode=0.00 score=0.00 encode=0.00"))


@dataclass(frozen=True, slots=True)
class Spec:
    """What a process is to do; urls are written as users write them."""

    engine: str
    source: str
    answers: str
    dead: str
    group: str
    payload: str
    bundle: str
    count: int
    batch: int
    exactly_once: bool = False

    def request(self) -> ConnectionRequest:
        """The link that it asks for."""
        urls = (StreamUrl.parse(text) for text in (self.source, self.answers, self.dead))
        source, answers, dead = urls
        return ConnectionRequest(source, self.group, answers, dead, exactly_once=self.exactly_once)


class CommitMeter:
    """Notes when batches end."""

    def __init__(self) -> None:
        self._marks: list[tuple[int, float, float]] = []

    def done(self, messages: int) -> None:
        """So many are committed by now."""
        self._marks.append((messages, time.perf_counter(), time.process_time()))

    def result(self) -> Mapping[str, float]:
        """Of all but the first batch; zeros if there was one alone."""
        first, last = self._marks[0], self._marks[-1]
        names = ("messages", "seconds", "cpu")
        return {
            name: after - before for name, before, after in zip(names, first, last, strict=True)
        }


def ours(spec: Spec, meter: CommitMeter) -> None:
    """`mlctl stream run`, without its terminal."""
    from mlctl.bundle.verify import verify
    from mlctl.services.stream.batching import BatchGoals
    from mlctl.services.stream.engine import RunSettings
    from mlctl.services.stream.events import StreamEvent
    from mlctl.services.stream.payloads import PayloadRequest
    from mlctl.services.stream.start import StreamConfig, run_stream

    def watch(event: StreamEvent) -> None:
        if event.batch is not None:
            meter.done(event.totals.messages)

    settings = RunSettings(BatchGoals(messages=spec.batch), max_messages=spec.count)
    wanted = StreamConfig(spec.request(), PayloadRequest(spec.payload), settings)
    with rare_collection():  # as the command does
        run_stream(verify(Path(spec.bundle)), wanted, watch, threading.Event())


def link(spec: Spec, meter: CommitMeter) -> None:
    """Our own transport without engine and model."""
    from mlctl.services.stream.transports.bridge import connect

    done = 0
    with connect(spec.request()) as opened:
        while done < spec.count:
            if found := opened.poll(spec.batch, 0.2):
                opened.commit(Commit(found, [_answer(each) for each in found]))
                done += len(found)
                meter.done(done)


def _answer(message: Message) -> Outgoing:
    source = f"bench:in/{message.partition}/{message.offset}"
    headers = (*_SHARED, (SOURCE, source.encode()))
    return Outgoing(message.content[:4], message.key, headers)


def kafka(spec: Spec, meter: CommitMeter) -> None:
    """confluent-kafka alone: consume, produce, flush, commit."""
    _kafka(spec, meter, lambda values: [value[:4] for value in values])


def by_hand(spec: Spec, meter: CommitMeter) -> None:
    """The same loop with the work of a run: parse, score and write JSON."""
    import onnxruntime

    runtime: Any = onnxruntime
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(f"{spec.bundle}/model.onnx", options)

    def answers(values: Sequence[bytes]) -> list[bytes]:
        x = np.array([orjson.loads(value)["x"] for value in values], np.float32)
        (y,) = session.run(None, {"x": x})
        return [orjson.dumps({"y": row}, option=orjson.OPT_SERIALIZE_NUMPY) for row in y]

    _kafka(spec, meter, answers)


def _kafka(
    spec: Spec, meter: CommitMeter, answers: Callable[[Sequence[bytes]], Sequence[bytes]]
) -> None:
    from confluent_kafka import Consumer, Producer

    request = spec.request()
    address = {**request.source.options, "bootstrap.servers": request.source.address}
    settings = {**address, "group.id": spec.group, "enable.auto.commit": False}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest"})
    producer = Producer({**address, "enable.idempotence": True, "linger.ms": 5})
    consumer.subscribe([request.source.topic])
    assert request.answers is not None
    topic, done, shared = request.answers.topic, 0, [*_SHARED]
    while done < spec.count:
        found = consumer.consume(spec.batch, 0.05)
        if not found:
            continue
        values = answers([each.value() or b"" for each in found])
        for each, value in zip(found, values, strict=True):
            source = f"bench:in/{each.partition()}/{each.offset()}".encode()
            producer.produce(topic, value, each.key(), headers=[*shared, (SOURCE, source)])
        producer.flush()
        consumer.commit(asynchronous=False)
        done += len(found)
        meter.done(done)
    consumer.close()


def redis(spec: Spec, meter: CommitMeter) -> None:
    """redis-py alone: XREADGROUP, then XADD and XACK in one MULTI."""
    from redis import Redis

    request = spec.request()
    db: Any = Redis.from_url(f"redis://{request.source.address}")
    topic, done = request.source.topic, 0
    assert request.answers is not None
    db.xgroup_create(topic, spec.group, "0", mkstream=True)
    while done < spec.count:
        reply = db.xreadgroup(spec.group, "one", {topic: ">"}, spec.batch, 200)
        found = reply[0][1] if reply else []
        if not found:
            continue
        pipeline = db.pipeline(transaction=True)
        for entry, fields in found:
            answer: dict[Any, bytes] = {
                b"value": fields[b"value"][:4],
                b"key": fields[b"key"],
                **dict(_SHARED),
            }
            answer[SOURCE] = b"bench:in/0/" + entry
            pipeline.xadd(request.answers.topic, answer)
        pipeline.xack(topic, spec.group, *[entry for entry, _fields in found])
        pipeline.execute()
        done += len(found)
        meter.done(done)


ENGINES: Mapping[str, Callable[[Spec, CommitMeter], None]] = {
    "ours": ours,
    "link": link,
    "kafka": kafka,
    "by hand": by_hand,
    "redis": redis,
}


def main() -> None:
    """Run the engine of the SPEC, JSON."""
    spec, meter = Spec(**orjson.loads(sys.argv[1])), CommitMeter()
    ENGINES[spec.engine](spec, meter)
    print(orjson.dumps({**meter.result(), "spec": asdict(spec)["engine"]}).decode())


if __name__ == "__main__":
    main()
