"""A request that repeats another is answered as if it were the first, whatever comes with it."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.online.batching.admission import QueueFullError
from services.online.batching.desks import Told
from services.online.batching.scheduler import Priority
from services.online.http.connection.plans import ResponsePlan, make_plan
from services.online.security.tokens import Access
from tests.services.online.http.connection.conftest import Bench
from tests.services.online.http.connection.lines import Line, Played, post
from tests.support.bundles import make_bundle


def ask(
    *values: Sequence[float], headers: str = "", parameters: Mapping[str, Any] | None = None
) -> bytes:
    """Rows as binary data, and so the answer."""
    rows = np.array(values, np.float32)
    size = {"binary_data_size": rows.nbytes}
    tensor = {"name": "x", "datatype": "FP32", "shape": rows.shape, "parameters": size}
    wanted = {"binary_data_output": True, **(parameters or {})}
    head = json.dumps({"inputs": [tensor], "parameters": wanted}).encode()
    return post(head + rows.tobytes(), f"Inference-Header-Content-Length: {len(head)}\r\n{headers}")


ONE = ask([1, 2, 3, 4])


# The model refuses what is below zero.
VALUES = st.sampled_from([*map(float, range(24)), -1.0])
ROWS = st.lists(st.lists(VALUES, min_size=4, max_size=4), min_size=1, max_size=3)
HEADERS = st.sampled_from(
    ["", "X-Request-Id: given-1\r\n", "X-Request-Id: given-2\r\n", "Mlctl-Priority: high\r\n",
     "Accept-Encoding: gzip\r\n", "Mlctl-Priority: none\r\n", "Content-Type: text/csv\r\n",
     "Mlctl-Priority: high\r\nMlctl-Priority: 0\r\n", "X-Request-Id: a\r\nX-Request-Id: b\r\n"]
)  # fmt: skip
PARAMETERS = st.sampled_from([{}, {}, {"priority": "high"}, {"timeout": 1}, {"timeout": 10**7}])
REQUESTS = st.one_of(
    st.builds(
        lambda rows, headers, parameters: ask(*rows, headers=headers, parameters=parameters),
        ROWS, HEADERS, PARAMETERS,
    ),
    ROWS.map(lambda rows: ask(rows[0])),
    ROWS.map(lambda rows: ask(rows[0])),
    st.just(ONE[:-1] + b"?"),
    st.just(post(b"{")),
    st.just(post(json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4],
                                         "data": [1, 2, 3, 4]}]}).encode())),
    st.just(ask([1, 2, 3])),
)  # fmt: skip
# For each connection in turn: what it asks, in how many pieces, and whether it leaves then.
TURNS = st.lists(
    st.lists(
        st.none() | st.tuples(REQUESTS, st.sampled_from([1, 1, 1, 2]), st.integers(0, 9)),
        min_size=4,
        max_size=4,
    ),
    max_size=5,
)


OUTCOMES = ("ok", "gone", "internal", "invalid_input", "deadline_exceeded")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(turns=TURNS)
def test_whatever_comes_together_is_answered_as_if_nothing_was_known(
    picky: Bench, turns: list[Any]
) -> None:
    found: list[tuple[list[list[bytes]], list[float]]] = []
    for learns in (False, True):
        before = [picky.counted(outcome) for outcome in OUTCOMES]
        answers = picky.runner.run(Played(picky, ONE, learns=learns).play(turns))
        after = [picky.counted(outcome) for outcome in OUTCOMES]
        found.append((answers, [b - a for a, b in zip(before, after, strict=True)]))
        assert picky.host.inflight.used == 0
    assert found[0] == found[1]


KINDS = st.sets(st.tuples(st.integers(1, 3), st.sampled_from(Priority)))


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(turns=TURNS, full=KINDS)
def test_whoever_is_refused_is_told_what_anyone_is(
    picky: Bench, turns: list[Any], full: set[tuple[int, Priority]]
) -> None:
    """`full` are the numbers of rows, and their lanes, for which there is no room."""
    policy: Any = picky.host._batching._policy  # type: ignore[union-attr]
    # One that leaves at once was refused before that, or was not yet looked at.
    turns = [[step and (*step[:2], 1) for step in turn] for turn in turns]
    found: list[tuple[list[list[bytes]], list[float]]] = []
    for learns in (False, True):
        before = [picky.counted(outcome) for outcome in (*OUTCOMES, "queue_full")]
        policy.offer = refusing(type(policy).offer.__get__(policy), full)
        try:
            answers = picky.runner.run(Played(picky, ONE, learns=learns).play(turns))
        finally:
            del policy.offer
        after = [picky.counted(outcome) for outcome in (*OUTCOMES, "queue_full")]
        found.append((answers, [b - a for a, b in zip(before, after, strict=True)]))
        assert picky.host.inflight.used == 0
    assert found[0] == found[1]


def refusing(offer: Any, full: set[tuple[int, Priority]]) -> Any:
    """`offer` of a queue that is `full` as soon as eight requests have come."""
    came = itertools.count(1)

    def refuse(rows: int, key: Any, now: float, deadline: float, priority: Priority) -> Any:
        if next(came) > 8 and (rows, priority) in full:
            seconds = rows + 3.5 * (priority is Priority.HIGH)
            raise QueueFullError(8, 8, seconds, wait=seconds)
        return offer(rows, key, now, deadline, priority)

    return refuse


async def learned(bench: Bench, content: bytes = ONE) -> Line:
    """A connection that knows `content`."""
    line = Line(bench)
    for repeated in (False, False, True):  # a connection's first is not looked at
        line.protocol.data_received(content)
        assert line.repeated() is repeated
        (answer,) = await line.answer()
        assert answer.startswith(b"HTTP/1.1 200 ")
    return line


def test_what_comes_again_is_known(bench: Bench) -> None:
    async def main() -> None:
        line = await learned(bench)
        line.protocol.data_received(ask([5, 6, 7, 8]))
        assert line.repeated()
        (answer,) = await line.answer()
        body = answer.partition(b"\r\n\r\n")[2]
        found = np.frombuffer(body[body.rindex(b"}") + 1 :], np.float32)
        assert found.tolist() == [36, 38, 40, 42]
        line.end()

    bench.runner.run(main())


def test_connections_that_repeat_nothing_are_not_looked_at_for_ever(bench: Bench) -> None:
    async def main() -> None:
        line = Line(bench)
        for number in range(20):
            line.protocol.data_received(ask([1, 2, 3, 4], headers=f"X-Request-Id: {number}\r\n"))
            assert not line.repeated()
            await line.answer()
        for _ in range(2):
            line.protocol.data_received(ONE)
            assert not line.repeated()
            await line.answer()
        line.end()

    bench.runner.run(main())


@pytest.mark.parametrize("limit", ["body", "inflight", "token", "stopped"])
def test_what_is_known_is_refused_like_the_first(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    async def main() -> None:
        line = await learned(bench)
        match limit:
            case "body":
                bench.host.settings = bench.settings.model_copy(update={"max_body_bytes": 20})
            case "inflight":
                monkeypatch.setattr(bench.host.inflight, "limit", 20)
            case "token":
                monkeypatch.setattr(bench.host, "access", Access("secret" * 8))
            case "stopped":
                monkeypatch.setattr(bench.host, "_hung", True)
        other = Line(bench, learns=False)
        for each in (line, other):
            each.protocol.data_received(ONE)
        found, expected = await line.answer(), await other.answer()
        assert found == expected
        assert not found[0].startswith(b"HTTP/1.1 200 ")
        assert bench.host.inflight.used == 0
        for each in (line, other):
            each.end()

    bench.runner.run(main())


def test_a_known_request_in_bad_company_is_parsed(bench: Bench) -> None:
    """Two at once, or the rest of another: the parser has to see all of it."""

    async def main() -> None:
        line = await learned(bench)
        line.protocol.data_received(ONE + ONE[:10])
        assert not line.repeated()
        first = await line.answer()
        line.protocol.data_received(ONE[10:])
        assert not line.repeated()
        assert await line.answer() == first
        line.protocol.data_received(ONE)
        assert line.repeated()
        assert await line.answer() == first
        line.end()

    bench.runner.run(main())


@pytest.mark.parametrize("begin", [ONE[:10], ONE[:-1], post(bytes(500))[:-400]])
def test_what_looks_known_within_another_is_parsed(bench: Bench, begin: bytes) -> None:
    async def main() -> None:
        answers = []
        for line in (await learned(bench), Line(bench, learns=False)):
            last = line.protocol.cycle
            line.protocol.data_received(begin)
            line.protocol.data_received(ONE)
            assert line.protocol.cycle is last or not line.repeated()
            line.protocol.data_received(bytes(500))
            answers.append(await line.answer())
            line.end()
        assert answers[0] == answers[1]

    bench.runner.run(main())


def test_an_answer_while_the_server_ends_says_so(bench: Bench) -> None:
    async def main() -> None:
        line = await learned(bench)
        line.protocol.data_received(ONE)
        assert line.repeated()
        line.protocol.shutdown()
        (answer,) = await line.answer()
        assert b"\r\nconnection: close\r\n" in answer
        assert line.wire.closed
        line.end()

    bench.runner.run(main())


def test_who_repeats_is_kept_for_as_long_as_anyone(bench: Bench) -> None:
    async def main() -> None:
        line = await learned(bench)
        protocol = line.protocol
        first = protocol.timeout_keep_alive_task
        assert first is not None
        protocol.timeout_keep_alive_handler()  # as if the first answer were long ago
        assert protocol.timeout_keep_alive_task is not first
        protocol.data_received(ONE)
        protocol.timeout_keep_alive_handler()  # and as if this one took long
        (answer,) = await line.answer()
        assert answer.startswith(b"HTTP/1.1 200 ")
        closed = [line.wire.closed]
        assert protocol.timeout_keep_alive_task is not None
        protocol._rested -= protocol.timeout_keep_alive
        protocol.timeout_keep_alive_handler()
        assert [*closed, line.wire.closed] == [False, True]
        line.end()

    bench.runner.run(main())


def test_an_answer_that_may_be_packed_goes_the_long_way(tmp_path: Path) -> None:
    wide = Bench(make_bundle(tmp_path / "bundle", features=64), asyncio.new_event_loop)
    rows = [list(range(64))] * 20
    packed = b"\r\ncontent-encoding: gzip\r\n"

    async def main() -> None:
        for headers in ("", "Accept-Encoding: gzip\r\n"):
            line = Line(wide)
            for repeated in (False, False, True, True):
                line.protocol.data_received(ask(*rows, headers=headers))
                assert line.repeated() is repeated
                (answer,) = await line.answer()
                assert (packed in answer) is bool(headers)
            line.end()

    wide.runner.run(main())
    wide.runner.run(wide.host.stop())
    wide.runner.close()


@pytest.mark.parametrize(
    ("headers", "parameters"),
    [("Mlctl-Priority: high\r\n", {"timeout": 1_500_000}), ("", {"priority": "high"})],
)
def test_what_was_asked_for_is_known(
    bench: Bench, headers: str, parameters: Mapping[str, Any]
) -> None:
    content = ask([1, 2, 3, 4], headers=headers, parameters=parameters)

    async def main() -> None:
        line = await learned(bench, content)
        line.protocol.data_received(content)
        cycle = line.protocol.cycle
        assert cycle.priority is Priority.HIGH
        await line.answer()
        assert cycle.timeout == (1.5 if "timeout" in parameters else bench.inference.seconds)
        line.end()

    bench.runner.run(main())


def test_waits_that_differ_cost_a_batch_no_more(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outputs of a batch become bytes once, and each answer tells its own wait."""
    made: list[ResponsePlan | None] = []

    def count(*arguments: Any) -> ResponsePlan | None:
        made.append(make_plan(*arguments))
        return made[-1]

    monkeypatch.setattr("services.online.http.connection.repeated.make_plan", count)

    async def main() -> None:
        first = Line(bench)
        lines = [first, *(Line(bench, base=type(first.protocol)) for _ in range(2))]
        for line in lines * 2:
            line.protocol.data_received(ONE)
            await line.answer()
        made.clear()
        outputs = {"y": np.arange(12, dtype=np.float32).reshape(3, 4)}
        told: list[Told] = []
        for row, line in enumerate(lines):
            line.protocol.data_received(ONE)
            told.append((line.protocol.cycle, (outputs, row, row + 1), row / 100))
        first.protocol.desk.answer(told, 0.5)
        for row, line in enumerate(lines):
            (content,) = line.wire.sent
            assert (
                b"\r\nserver-timing: queue;dur=%d.000, infer;dur=500.000\r\n" % (row * 10)
                in content
            )
            assert content.endswith(outputs["y"][row].tobytes())
            line.end()
        assert len(made) == 1

    bench.runner.run(main())
    assert bench.host.inflight.used == 0


def test_who_leaves_is_withdrawn(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is in a batch that runs, and who waits for the next one."""
    batching: Any = bench.host._batching
    gate, started, run = threading.Event(), threading.Event(), batching._model.run

    def wait(inputs: dict[str, np.ndarray]) -> Any:
        started.set()
        assert gate.wait(20)
        return run(inputs)

    async def main() -> None:
        lines = [await learned(bench) for _ in range(3)]
        monkeypatch.setattr(batching, "_inline", False)
        monkeypatch.setattr(batching._model, "run", wait)
        try:
            lines[0].protocol.data_received(ONE)
            assert await asyncio.to_thread(started.wait, 20)
            for line in lines[1:]:
                line.protocol.data_received(ONE)
            async with asyncio.timeout(20):
                while bench.host.waiting_rows < 2:  # noqa: ASYNC110 - turns of the loop
                    await asyncio.sleep(0)
            for line in lines[:2]:
                line.end()
            assert bench.host.waiting_rows == 1
        finally:
            gate.set()
        (answer,) = await lines[2].answer()
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert [line.wire.sent for line in lines] == [[], [], []]
        assert bench.host.inflight.used == 0
        lines[2].end()

    before = bench.counted("gone")
    bench.runner.run(main())
    assert bench.counted("gone") == before + 2
