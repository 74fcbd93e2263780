"""Long work and batches in turn: told by who ran after whom, not by a clock."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping

import numpy as np
import pytest

from bundle.clock import ManualClock, SystemClock
from bundle.errors import ErrorCode, MlctlError
from services.online.batching.executor import Answer, Arrays, BatchExecutor
from services.online.batching.long_requests import Steps
from services.online.batching.scheduler import Limits, Priority
from services.runtime.streaming import ROOM
from tests.services.online.batching.test_executor import Meter, until, x, y


class LongModel:
    """Adds 1, four rows at a time, and makes a piece of each part; remembers what ran."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.log: list[str] = []
        self.closed = 0

    def check(self, inputs: Mapping[str, np.ndarray]) -> int:
        return int(inputs["x"].shape[0])

    def run(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        assert self.gate.wait(20)
        self.log.append(f"batch {len(inputs['x'])}")
        return {"y": inputs["x"] + 1}

    def is_long(self, rows: int) -> bool:
        return rows > 4

    def steps(self, inputs: Mapping[str, np.ndarray], *, whole: bool) -> Steps:
        made = []
        try:
            for start in range(0, len(inputs["x"]), 4):
                assert self.gate.wait(20)
                part = inputs["x"][start : start + 4]
                self.log.append(f"step {start // 4}")
                if (part < 0).any():
                    raise ValueError("negative")
                made.append(part + 1)
                yield None if whole else {"y": made[-1]}
            if whole:
                yield {"y": np.concatenate(made)}
        finally:
            self.closed += 1


Scenario = Callable[[BatchExecutor, LongModel], Awaitable[None]]


def play(scenario: Scenario, *, clock: ManualClock | None = None, max_long: int = 8) -> Meter:
    meter, model = Meter(), LongModel()

    async def main() -> None:
        limits = Limits(max_rows=4, max_queue_rows=400, max_long=max_long)
        batching = BatchExecutor(model, limits, clock or SystemClock(), meter, stepwise=model)
        try:
            await asyncio.wait_for(scenario(batching, model), 30)
        finally:
            model.gate.set()
            batching.close()

    asyncio.run(main())
    return meter


def test_batches_go_in_between_the_steps_of_long_work() -> None:
    async def scenario(batching: BatchExecutor, model: LongModel) -> None:
        model.gate.clear()
        long = batching.submit(x(*range(40)), 20)
        await until(lambda: batching.running_rows)
        short = [batching.submit(x(1, 2, 3), 20) for _ in range(5)]
        model.gate.set()
        assert [y(answer) for answer in await asyncio.gather(*short)] == [[2, 3, 4]] * 5
        assert not long.done()
        assert y(await long) == [value + 1 for value in range(40)]
        assert model.log[:10] == [kind for step in range(5) for kind in (f"step {step}", "batch 3")]
        assert len(model.log) == 15

    meter = play(scenario)
    assert sorted(stats.rows for stats in meter.batches) == [3] * 5 + [40]


def test_long_work_is_not_starved_either_and_takes_turns() -> None:
    async def scenario(batching: BatchExecutor, model: LongModel) -> None:
        model.gate.clear()
        first = batching.submit(x(*range(8)), 20)
        await until(lambda: batching.running_rows)
        others = [batching.submit(x(1, 2, 3), 20, Priority.HIGH) for _ in range(9)]
        second = batching.submit(x(*range(8)), 20)
        model.gate.set()
        await asyncio.gather(first, second, *others)
        steps = [entry for entry in model.log if entry.startswith("step")]
        assert steps == ["step 0", "step 0", "step 1", "step 1"]
        gaps = "".join(entry[0] for entry in model.log)
        assert "bb" not in gaps.rstrip("b")

    play(scenario)


def test_the_first_piece_of_a_stream_is_timed_and_no_whole_answer() -> None:
    clock = ManualClock()

    async def scenario(batching: BatchExecutor, model: LongModel) -> None:
        model.gate.clear()
        stream = batching.stream(x(*range(8)), 20)
        whole = batching.submit(x(*range(8)), 20)
        await until(lambda: batching.running_rows)
        clock.advance(3.0)
        model.gate.set()
        assert len([piece async for piece in stream]) == 2
        await whole

    assert play(scenario, clock=clock).first_pieces == [3.0]


def test_long_work_of_the_high_lane_goes_first() -> None:
    async def scenario(batching: BatchExecutor, model: LongModel) -> None:
        model.gate.clear()
        first = batching.submit(x(*range(8)), 20)
        await until(lambda: batching.running_rows)
        normal = batching.stream(x(*range(8)), 20)
        high = batching.submit(x(*range(8)), 20, Priority.HIGH)
        model.gate.set()
        await high
        assert not first.done()
        assert y(await anext(normal)) == [1, 2, 3, 4]
        normal.close()
        await first

    play(scenario)


@pytest.mark.parametrize("leave", [True, False])
def test_nothing_more_is_done_for_who_left_or_is_late(leave: bool) -> None:
    clock = ManualClock()

    async def scenario(batching: BatchExecutor, model: LongModel) -> None:
        model.gate.clear()
        long = batching.submit(x(*range(400)), 5.0)
        await until(lambda: batching.running_rows)
        if leave:
            long.cancel()
        else:
            clock.advance(5.1)
            batching.submit(x(1), 5.0).cancel()  # somebody looks at the clock
        await asyncio.wait([long])
        model.gate.set()
        await batching.drain()
        await until(lambda: model.closed)
        assert model.log == ["step 0"]
        if not leave:
            failure = long.exception()
            assert isinstance(failure, MlctlError)
            assert failure.code is ErrorCode.DEADLINE_EXCEEDED

    play(scenario, clock=clock)


def test_who_leaves_at_once_leaves_nothing_behind() -> None:
    async def scenario(batching: BatchExecutor, model: LongModel) -> None:
        batching.submit(x(*range(8)), 20).cancel()
        batching.stream(x(*range(8)), 20).close()
        await batching.drain()
        await until(lambda: model.closed == len(model.log))
        assert model.log in ([], ["step 0"])  # it may have begun

    play(scenario)


def test_a_reader_sets_the_pace() -> None:
    async def scenario(batching: BatchExecutor, model: LongModel) -> None:
        stream = batching.stream(x(*range(40)), 20)
        await until(lambda: len(model.log) == ROOM)
        for turn in range(3):
            await batching.submit(x(1), 20)  # others go on meanwhile
            assert model.log.count("batch 1") == turn + 1
        assert len(model.log) == ROOM + 3
        pieces = [piece async for piece in stream]
        assert [y(piece)[0] for piece in pieces] == [1 + 4 * step for step in range(10)]
        assert all(isinstance(piece, Answer) for piece in pieces)
        stream.close()

    play(scenario)


def test_a_step_that_fails_comes_after_the_pieces_before_it() -> None:
    async def scenario(batching: BatchExecutor, model: LongModel) -> None:
        stream = batching.stream(x(1, 2, 3, 4, -5), 20)
        assert y(await anext(stream)) == [2, 3, 4, 5]
        with pytest.raises(ValueError, match="negative"):
            await anext(stream)
        with pytest.raises(ValueError, match="negative"):
            await batching.submit(x(1, 2, 3, 4, -5), 20)
        assert y(await batching.submit(x(7), 20)) == [8]
        assert model.closed == 2

    play(scenario)


def test_a_close_fails_what_is_open_and_more_than_may_be_is_refused() -> None:
    async def scenario(batching: BatchExecutor, model: LongModel) -> None:
        model.gate.clear()
        streams = [batching.stream(x(*range(8)), 20) for _ in range(2)]
        with pytest.raises(MlctlError, match="2 long requests are open"):
            batching.stream(x(*range(8)), 20)
        with pytest.raises(MlctlError, match="has 401 rows"):
            batching.submit(x(*range(401)), 20)
        batching.close()
        model.gate.set()
        for stream in streams:
            with pytest.raises(MlctlError) as caught:
                await anext(stream)
            assert caught.value.code is ErrorCode.UNAVAILABLE

    play(scenario, max_long=2)
