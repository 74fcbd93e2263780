"""`mlctl stream run`: a model, a payload and a link, put together and run."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from bundle.errors import ErrorCode, MlctlError
from bundle.tensors import Signature
from services.runtime.scorable import Scorable, check_batched, open_scorable
from services.stream.answer_headers import AnswerHeaders
from services.stream.base import Guarantee, LinkRequest, Payload, StreamConnection, StreamUrl
from services.stream.engine import Pump, RunSettings, StreamReport
from services.stream.events import StreamEvent
from services.stream.payloads import PayloadRequest, open_payload
from services.stream.scoring import MessageScorer
from services.stream.transports.bridge import connect

_SENTENCES = {
    Guarantee.EXACTLY_ONCE: "each message is answered exactly once, whatever is killed",
    Guarantee.AT_LEAST_ONCE: "no message is lost; after a kill some are answered again, with the "
    "same mlctl-source header",
}
# Objects of several batches: the garbage collector's threshold for its youngest generation.
_YOUNG_OBJECTS = 200_000


@dataclass(frozen=True, slots=True)
class StreamConfig:
    """What a user asked for: where from, where to, in which form."""

    link: LinkRequest
    payload: PayloadRequest = field(default_factory=PayloadRequest)
    settings: RunSettings = field(default_factory=RunSettings)


def dead_place(source: StreamUrl) -> StreamUrl:
    """Where dead letters go unless it is said: beside the source."""
    if source.topic:
        return source.named(f"{source.topic}.dead")
    if source.scheme == "file":
        return StreamUrl("file", f"{source.address}.dead")
    raise MlctlError(
        ErrorCode.INVALID_INPUT,
        "messages that cannot be answered need a place",
        "Say where they go: --dead dead.jsonl.",
    )


def shadow_of(request: LinkRequest) -> LinkRequest:
    """The same messages for a group of its own, whose dead letters are beside its answers."""
    answers = request.answers
    assert answers is not None
    dead = request.dead if request.dead != dead_place(request.source) else dead_place(answers)
    return replace(request, group=f"{request.group}.shadow", dead=dead)


def promise(link: StreamConnection, source: StreamUrl) -> str:
    """What the run guarantees, as a sentence."""
    if source.scheme == "-":
        return "A pipe is read once: what was read and not answered yet is lost with this process"
    return f"{link.guarantee.value.capitalize()}: {_SENTENCES[link.guarantee]}"


def _payload(wanted: StreamConfig, signature: Signature) -> Payload:
    answers = wanted.link.answers
    if answers is None or answers.scheme != "precomputed":
        return open_payload(wanted.payload, signature)
    from services.stream.payloads.precomputed import PrecomputedPayload

    return PrecomputedPayload(wanted.payload, signature, answers.options.get("key"))


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Run the garbage collector seldom: messages are many and have no cycles.

    Objects that exist at the start are left out until the end. Without this a run on the SQLite
    log answers a quarter fewer messages a second; leaving out only the former is no better.
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def run_stream(
    model: Scorable,
    wanted: StreamConfig,
    watch: Callable[[StreamEvent], None],
    stop: threading.Event,
    begin: Callable[[StreamConnection], None] = lambda _link: None,
) -> StreamReport:
    """Run until there is an end or `stop` is set; `begin` is called once all is ready to start.

    See Pump.run for how it fails. Signals reach the thread that calls it: it owns the link.
    """
    check_batched(model)
    payload = _payload(wanted, model.signature)
    link = connect(wanted.link)
    scorer = MessageScorer(open_scorable(model), payload)
    stamp = AnswerHeaders(wanted.link.source, model.name, model.digest)
    with link, seldom_collected():
        begin(link)
        return Pump(link, scorer, stamp, wanted.settings, watch, stop).run()
