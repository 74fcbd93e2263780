"""Requests that run in steps take turns: shown by the order of the steps, not by a clock."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping

import numpy as np
import pytest

from mlctl.core.clock import SystemClock
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.online.batching.scheduler import Limits, Priority
from mlctl.services.online.batching.stepwise import Steps, StepwiseExecutor
from mlctl.services.online.batching.streaming import ROOM, Answer
from tests.services.online.batching.test_executor import Meter, until, x, y
from tests.support.clock import ManualClock


class SteppedModel:
    """Adds 1, four rows at a time, and makes a piece of each part; remembers what ran."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.log: list[str] = []
        self.closed = 0

    def check(self, inputs: Mapping[str, np.ndarray]) -> int:
        return int(inputs["x"].shape[0])

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


Scenario = Callable[[StepwiseExecutor, SteppedModel], Awaitable[None]]


def play(scenario: Scenario, *, clock: ManualClock | None = None, max_open: int = 8) -> Meter:
    meter, model = Meter(), SteppedModel()

    async def main() -> None:
        limits = Limits(max_rows=4, max_queue_rows=400)
        executor = StepwiseExecutor(model, limits, clock or SystemClock(), meter, max_open=max_open)
        try:
            await asyncio.wait_for(scenario(executor, model), 30)
        finally:
            model.gate.set()
            executor.close()

    asyncio.run(main())
    return meter


def test_meter__first_piece_of_a_stream__is_timed_and_no_whole_answer() -> None:
    clock = ManualClock()

    async def scenario(executor: StepwiseExecutor, model: SteppedModel) -> None:
        model.gate.clear()
        stream = executor.stream(x(*range(8)), 20)
        whole = executor.submit(x(*range(8)), 20)
        await until(lambda: executor.running_rows)
        clock.advance(3.0)
        model.gate.set()
        assert len([piece async for piece in stream]) == 2
        await whole

    assert play(scenario, clock=clock).first_pieces == [3.0]


def test_steps__high_priority__go_first() -> None:
    async def scenario(executor: StepwiseExecutor, model: SteppedModel) -> None:
        model.gate.clear()
        first = executor.submit(x(*range(8)), 20)
        await until(lambda: executor.running_rows)
        normal = executor.stream(x(*range(8)), 20)
        high = executor.submit(x(*range(8)), 20, Priority.HIGH)
        model.gate.set()
        await high
        assert not first.done()
        assert y(await anext(normal)) == [1, 2, 3, 4]
        normal.close()
        await first

    play(scenario)


@pytest.mark.parametrize("leave", [True, False])
def test_steps__client_left_or_deadline_passed__no_further_step_runs(leave: bool) -> None:
    clock = ManualClock()

    async def scenario(executor: StepwiseExecutor, model: SteppedModel) -> None:
        model.gate.clear()
        long = executor.submit(x(*range(400)), 5.0)
        await until(lambda: executor.running_rows)
        if leave:
            long.cancel()
        else:
            clock.advance(5.1)
            executor.submit(x(1), 5.0).cancel()  # its tick expires the other
        await asyncio.wait([long])
        model.gate.set()
        await executor.drain()
        await until(lambda: model.closed)
        assert model.log == ["step 0"]
        if not leave:
            failure = long.exception()
            assert isinstance(failure, MlctlError)
            assert failure.code is ErrorCode.DEADLINE_EXCEEDED

    play(scenario, clock=clock)


def test_request__cancelled_at_once__leaves_nothing_behind() -> None:
    async def scenario(executor: StepwiseExecutor, model: SteppedModel) -> None:
        executor.submit(x(*range(8)), 20).cancel()
        executor.stream(x(*range(8)), 20).close()
        await executor.drain()
        await until(lambda: model.closed == len(model.log))
        assert model.log in ([], ["step 0"])  # it may have begun

    play(scenario)


def test_stream__slow_reader__sets_the_pace() -> None:
    async def scenario(executor: StepwiseExecutor, model: SteppedModel) -> None:
        stream = executor.stream(x(*range(40)), 20)
        await until(lambda: len(model.log) == ROOM)
        for turn in range(3):
            await executor.submit(x(1), 20)  # others go on meanwhile
            assert model.log.count("step 0") == turn + 2
        assert len(model.log) == ROOM + 3
        pieces = [piece async for piece in stream]
        assert [y(piece)[0] for piece in pieces] == [1 + 4 * step for step in range(10)]
        assert all(isinstance(piece, Answer) for piece in pieces)
        stream.close()

    play(scenario)


def test_step__fails__error_comes_after_the_pieces_before_it() -> None:
    async def scenario(executor: StepwiseExecutor, model: SteppedModel) -> None:
        stream = executor.stream(x(1, 2, 3, 4, -5), 20)
        assert y(await anext(stream)) == [2, 3, 4, 5]
        with pytest.raises(ValueError, match="negative"):
            await anext(stream)
        with pytest.raises(ValueError, match="negative"):
            await executor.submit(x(1, 2, 3, 4, -5), 20)
        assert y(await executor.submit(x(7), 20)) == [8]
        await until(lambda: model.closed == 3)

    play(scenario)


def test_close__open_streams__fail_and_too_many_are_rejected() -> None:
    async def scenario(executor: StepwiseExecutor, model: SteppedModel) -> None:
        model.gate.clear()
        streams = [executor.stream(x(*range(8)), 20) for _ in range(2)]
        with pytest.raises(MlctlError, match="2 streams are open"):
            executor.stream(x(*range(8)), 20)
        with pytest.raises(MlctlError, match="has 401 rows"):
            executor.submit(x(*range(401)), 20)
        executor.close()
        model.gate.set()
        for stream in streams:
            with pytest.raises(MlctlError) as caught:
                await anext(stream)
            assert caught.value.code is ErrorCode.UNAVAILABLE

    play(scenario, max_open=2)
