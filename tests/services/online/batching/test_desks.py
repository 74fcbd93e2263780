"""Callers of a desk in the batcher: told as those with futures are, each exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any

import numpy as np
import pytest

from bundle.clock import ManualClock
from bundle.errors import ErrorCode, MlctlError
from bundle.tensors import DYNAMIC, Datatype, TensorSpec
from services.online.batching.desks import Told
from services.online.batching.executor import BatchExecutor
from services.online.batching.joining import cut
from services.online.batching.rawrows import Form
from services.online.batching.scheduler import Priority
from services.protocol.wire import declare
from services.runtime.padding import shape_key
from tests.services.online.batching.test_executor import LIMITS, GatedModel, Meter, until, x, y

SPEC = TensorSpec(name="x", dtype=Datatype.FP32, shape=(DYNAMIC, 1))


class Asker:
    """A caller of the desk with one row."""

    def __init__(self, value: float, timeout: float = 10.0) -> None:
        row = x(value)
        self.data = row["x"].tobytes()
        self.form = Form({"x": declare({"x": SPEC}, "x", "FP32", [1, 1])}, {"x": slice(0, 4)})
        self.rows = 1
        self.key: Hashable = shape_key(row)
        self.timeout = timeout
        self.priority = Priority.NORMAL
        self.number = -1
        self.heard: list[list[float] | ErrorCode] = []

    def done(self) -> bool:
        return bool(self.heard)

    def set_exception(self, error: Exception, /) -> None:
        self.heard.append(error.code if isinstance(error, MlctlError) else ErrorCode.INTERNAL)


class Desk:
    """Tells its callers their numbers."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def answer(self, told: list[Told], seconds: float) -> None:
        assert seconds >= 0
        self.batches.append(len(told))
        for caller, share, wait in told:
            assert wait >= 0
            caller.heard.append(cut(share)["y"].ravel().tolist())


def ask(batching: BatchExecutor, *askers: Asker) -> Desk:
    desk = Desk()
    batching.submit_all(askers, desk)
    return desk


Play = Callable[[BatchExecutor, GatedModel, ManualClock], Awaitable[None]]


def play(scene: Play, *, inline: bool = False) -> Meter:
    meter, model, clock = Meter(), GatedModel(), ManualClock()

    async def main() -> None:
        batching = BatchExecutor(model, LIMITS, clock, meter, inline=inline)
        try:
            await asyncio.wait_for(scene(batching, model, clock), 30)
        finally:
            model.gate.set()
            batching.close()

    asyncio.run(main())
    return meter


def test_callers_run_together_and_are_told_together() -> None:
    async def scene(batching: BatchExecutor, model: GatedModel, _: ManualClock) -> None:
        askers = [Asker(1), Asker(-1), Asker(3)]
        desk = ask(batching, *askers)
        assert await batching.drain(10)
        assert [each.heard for each in askers] == [[[2]], [ErrorCode.INTERNAL], [[4]]]
        assert model.runs[0] == [1, -1, 3]
        assert desk.batches == [2]

    play(scene, inline=True)


def test_they_share_batches_with_futures() -> None:
    async def scene(batching: BatchExecutor, model: GatedModel, _: ManualClock) -> None:
        model.gate.clear()
        first = batching.submit(x(9), 10)
        await until(lambda: model.started)
        future, asker = batching.submit(x(1), 10), Asker(2)
        ask(batching, asker)
        model.gate.set()
        assert [y(await each) for each in (first, future)] == [[10], [2]]
        assert await batching.drain(10)
        assert asker.heard == [[3]]
        assert model.runs == [[9], [1, 2]]

    assert [stats.rows for stats in play(scene).batches] == [1, 2]


def test_the_next_batch_does_not_wait_until_all_are_told_of_this_one() -> None:
    waited: list[int] = []

    async def scene(batching: BatchExecutor, model: GatedModel, _clock: ManualClock) -> None:
        class Watcher(Desk):
            def answer(self, told: list[Told], seconds: float) -> None:
                waited.append(batching.waiting_rows)
                super().answer(told, seconds)

        askers = [Asker(value) for value in range(2 * LIMITS.max_rows)]
        batching.submit_all(askers, Watcher())
        model.gate.set()
        await until(lambda: all(asker.heard for asker in askers))
        assert [asker.heard for asker in askers] == [[[value + 1]] for value in range(8)]

    play(scene)
    assert waited == [0, 0]  # 4 if it did


@pytest.mark.parametrize(("count", "batches"), [(1, 1), (2 * LIMITS.max_rows, 2)])
def test_a_desk_that_fails_does_not_keep_the_slot(count: int, batches: int) -> None:
    async def scene(batching: BatchExecutor, _model: GatedModel, _clock: ManualClock) -> None:
        class Broken(Desk):
            def answer(self, told: list[Told], seconds: float) -> None:
                super().answer(told, seconds)
                raise ValueError("broken")

        problems = list[dict[str, Any]]()
        batching._loop.set_exception_handler(lambda _, problem: problems.append(problem))
        askers, last = [Asker(value) for value in range(count)], Asker(9)
        batching.submit_all(askers, Broken())
        await until(lambda: all(asker.heard for asker in askers))
        assert await batching.drain(10)
        ask(batching, last)
        await until(lambda: last.heard)
        assert last.heard == [[10]]
        assert [str(problem["exception"]) for problem in problems] == ["broken"] * batches

    play(scene)


def test_who_leaves_or_is_late_is_told_nothing_more() -> None:
    async def scene(batching: BatchExecutor, model: GatedModel, clock: ManualClock) -> None:
        model.gate.clear()
        running, late = Asker(1), Asker(2, timeout=1.0)
        desk = ask(batching, running, late)
        await until(lambda: model.started)
        waiting = Asker(3)
        ask(batching, waiting)
        for each in (running, waiting):
            batching.withdraw(each)
        assert batching.waiting_rows == 0
        clock.advance(2.0)
        ask(batching, last := Asker(4))
        assert late.heard == [ErrorCode.DEADLINE_EXCEEDED]
        model.gate.set()
        assert await batching.drain(10)
        assert (running.heard, waiting.heard, late.heard) == ([], [], [ErrorCode.DEADLINE_EXCEEDED])
        assert last.heard == [[5]]
        assert desk.batches == []
        assert model.runs == [[1, 2], [4]]

    play(scene)


def test_one_too_many_is_refused_and_the_others_are_not() -> None:
    async def scene(batching: BatchExecutor, model: GatedModel, _: ManualClock) -> None:
        model.gate.clear()
        ask(batching, Asker(0))
        await until(lambda: model.started)
        askers = [Asker(float(number)) for number in range(LIMITS.max_queue_rows + 1)]
        ask(batching, *askers)
        assert [each.heard for each in askers] == [[]] * (len(askers) - 1) + [
            [ErrorCode.QUEUE_FULL]
        ]
        batching.close()
        assert all(len(each.heard) == 1 for each in askers)
        assert askers[0].heard == [ErrorCode.UNAVAILABLE]

    play(scene)


def test_only_what_may_be_joined_has_a_key() -> None:
    async def scene(batching: BatchExecutor, *_: object) -> None:
        assert batching.join_key(x(1)) == shape_key(x(2))
        assert batching.join_key({"x": np.zeros((1, 2))}) != shape_key(x(2))

    play(scene)


def test_those_who_are_refused_alike_count_and_hear_it() -> None:
    async def scene(batching: BatchExecutor, model: GatedModel, _: ManualClock) -> None:
        model.gate.clear()
        running = Asker(0)
        ask(batching, running)
        await until(lambda: model.started)
        load: Any = batching._policy._forecast._load
        before = load._units
        askers = [Asker(value) for value in range(LIMITS.max_queue_rows + 5)]
        hurried = Asker(1, timeout=1.0)  # looked at by itself
        ask(batching, *askers, hurried)
        full = [each for each in (*askers, hurried) if each.heard]
        assert full == [*askers[LIMITS.max_queue_rows :], hurried]
        assert all(each.heard == [ErrorCode.QUEUE_FULL] for each in full)
        assert load._units == before + len(askers) + 1
        model.gate.set()
        assert await batching.drain(10)
        assert [len(each.heard) for each in askers] == [1] * len(askers)

    play(scene)
