from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping

import numpy as np
import pytest

from mlctl.bundle.arrays import Arrays
from mlctl.bundle.tensors import DYNAMIC, Datatype, Signature, TensorSpec
from mlctl.core.clock import SystemClock
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.model.padding import LengthPadding
from mlctl.services.online.batching.executor import Answer, BatchExecutor
from mlctl.services.online.batching.scheduler import Limits, Priority, QueueFullError
from mlctl.services.online.metrics.counts import BatchStats
from tests.support.clock import ManualClock
from tests.support.wait import wait_until


class Meter:
    def __init__(self) -> None:
        self.batches: list[BatchStats] = []
        self.depths: list[int] = []
        self.first_pieces: list[float] = []

    def batch(self, stats: BatchStats) -> None:
        self.batches.append(stats)

    def first_piece(self, seconds: float) -> None:
        self.first_pieces.append(seconds)

    def queue_rows(self, rows: int) -> None:
        self.depths.append(rows)


class GatedModel:
    """Adds 1; each run waits until the gate is open. Fails for negative rows."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.started = 0
        self.runs: list[list[float]] = []

    def check(self, inputs: Mapping[str, np.ndarray]) -> int:
        return int(inputs["x"].shape[0])

    def run(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        self.started += 1
        assert self.gate.wait(20)
        self.runs.append(inputs["x"].ravel().tolist())
        if (inputs["x"] < 0).any():
            raise ValueError("negative")
        return {"y": inputs["x"] + 1}


def x(*values: float) -> Arrays:
    return {"x": np.array(values, dtype=np.float32).reshape(-1, 1)}


def y(answer: Answer) -> list[float]:
    values: list[float] = answer.outputs["y"].ravel().tolist()
    return values


Scenario = Callable[[BatchExecutor, GatedModel, Meter], Awaitable[None]]
LIMITS = Limits(max_rows=4, max_queue_rows=8)


def play(scenario: Scenario, *, inline: bool = False, model: GatedModel | None = None) -> Meter:
    meter, model = Meter(), model or GatedModel()

    async def main() -> None:
        batching = BatchExecutor(model, LIMITS, SystemClock(), meter, inline=inline)
        try:
            await asyncio.wait_for(scenario(batching, model, meter), 30)
        finally:
            model.gate.set()
            batching.close()

    asyncio.run(main())
    return meter


async def until(condition: Callable[[], object]) -> None:
    await asyncio.to_thread(wait_until, condition)


async def error_of(future: asyncio.Future[Answer]) -> ErrorCode:
    with pytest.raises(MlctlError) as caught:
        await future
    return caught.value.code


@pytest.mark.parametrize("inline", [False, True])
def test_submit__requests_of_one_tick__share_a_batch(inline: bool) -> None:
    async def scenario(batching: BatchExecutor, model: GatedModel, meter: Meter) -> None:
        answers = await asyncio.gather(*(batching.submit(x(i), 20) for i in range(6)))
        assert [y(answer) for answer in answers] == [[i + 1.0] for i in range(6)]
        assert model.runs == [[0, 1, 2, 3], [4, 5]]
        assert [stats.rows for stats in meter.batches] == [4, 2]

    play(scenario, inline=inline)


@pytest.mark.parametrize("inline", [False, True])
def test_submit__one_bad_request__fails_alone(inline: bool) -> None:
    async def scenario(batching: BatchExecutor, _model: GatedModel, _meter: Meter) -> None:
        futures = [batching.submit(x(value), 20) for value in (1, -2, 3)]
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        assert isinstance(outcomes[1], ValueError)
        assert [y(o) for o in outcomes if isinstance(o, Answer)] == [[2], [4]]

    play(scenario, inline=inline)


def test_submit__cancelled_request__is_not_run() -> None:
    async def scenario(batching: BatchExecutor, model: GatedModel, _meter: Meter) -> None:
        model.gate.clear()
        first = batching.submit(x(1), 20)
        await until(lambda: model.started)
        gone, stays = batching.submit(x(2), 20), batching.submit(x(3), 20)
        gone.cancel()
        await asyncio.sleep(0)
        model.gate.set()
        assert [y(await first), y(await stays)] == [[2], [4]]
        assert model.runs == [[1], [3]]

    play(scenario)


def test_close__requests_wait__they_fail_and_are_not_run() -> None:
    async def scenario(batching: BatchExecutor, model: GatedModel, _meter: Meter) -> None:
        escaped: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: escaped.append(context))
        model.gate.clear()
        futures = [batching.submit(x(1), 20)]
        await until(lambda: model.started)
        futures += [batching.submit(x(2), 20), batching.submit(x(3), 20)]
        batching.close()
        assert {await error_of(future) for future in futures} == {ErrorCode.UNAVAILABLE}
        model.gate.set()
        assert await batching.drain(20)
        await asyncio.sleep(0)
        assert model.runs == [[1]]
        assert not escaped

    play(scenario)


def test_submit__full_queue__rejects_until_it_drains() -> None:
    async def scenario(batching: BatchExecutor, model: GatedModel, meter: Meter) -> None:
        model.gate.clear()
        running = batching.submit(x(0), 20)
        await until(lambda: model.started)
        waiting = [batching.submit(x(i), 20) for i in range(8)]
        with pytest.raises(QueueFullError):
            batching.submit(x(9), 20)
        await asyncio.sleep(0)
        assert max(meter.depths) == 8
        model.gate.set()
        await asyncio.gather(running, *waiting)
        await batching.drain()
        assert meter.depths[-1] == 0

    play(scenario)


def test_quick_reject__full_queue__until_its_batch_has_run() -> None:
    async def scenario(batching: BatchExecutor, model: GatedModel, _: Meter) -> None:
        model.gate.clear()
        first = batching.submit(x(1), 20)
        await until(lambda: model.started)
        waiting = [batching.submit(x(value), 20) for value in range(8)]
        with pytest.raises(QueueFullError):
            batching.submit(x(9), 20)
        assert batching.quick_reject(Priority.NORMAL) is not None
        model.gate.set()
        await asyncio.gather(first, *waiting)
        assert batching.quick_reject(Priority.NORMAL) is None

    play(scenario)


def test_deadline__model_is_still_running__request_is_answered() -> None:
    async def scenario(batching: BatchExecutor, model: GatedModel, _meter: Meter) -> None:
        model.gate.clear()
        running = batching.submit(x(1), 0.05)
        await until(lambda: model.started)
        waiting = batching.submit(x(2), 0.05)
        assert await error_of(running) is ErrorCode.DEADLINE_EXCEEDED
        assert await error_of(waiting) is ErrorCode.DEADLINE_EXCEEDED
        later = batching.submit(x(3), 20)
        await asyncio.sleep(0)
        assert model.started == 1  # the first batch still has the slot
        model.gate.set()
        assert y(await later) == [4]
        assert model.runs == [[1], [3]]

    play(scenario)


async def test_deadline__manual_clock__decides() -> None:
    clock, meter, model = ManualClock(), Meter(), GatedModel()

    batching = BatchExecutor(model, LIMITS, clock, meter)
    model.gate.clear()
    slow = batching.submit(x(1), 5)
    await until(lambda: model.started)
    late = batching.submit(x(2), 5)
    clock.advance(5)
    batching._pump()
    assert await error_of(late) is ErrorCode.DEADLINE_EXCEEDED
    assert await error_of(slow) is ErrorCode.DEADLINE_EXCEEDED
    model.gate.set()
    await batching.drain()
    batching.close()
    assert meter.batches == [BatchStats(rows=1, queue_seconds=0.0, infer_seconds=5.0)]


def test_drain__run_never_ends__gives_up_after_the_grace_time() -> None:
    async def scenario(batching: BatchExecutor, model: GatedModel, _meter: Meter) -> None:
        assert batching.running_seconds == 0
        model.gate.clear()
        stuck = batching.submit(x(1), 0.05)
        await until(lambda: model.started)
        assert await error_of(stuck) is ErrorCode.DEADLINE_EXCEEDED
        assert batching.running_seconds > 0
        assert not await batching.drain(grace=0.01)
        model.gate.set()
        assert await batching.drain(grace=20)
        assert batching.running_seconds == 0

    play(scenario)


def test_priority__high_request__is_run_first() -> None:
    async def scenario(batching: BatchExecutor, model: GatedModel, _meter: Meter) -> None:
        model.gate.clear()
        first = batching.submit(x(0), 20)
        await until(lambda: model.started)
        crowd = [batching.submit(x(i), 20) for i in range(1, 5)]
        urgent = batching.submit(x(9), 20, Priority.HIGH)
        model.gate.set()
        await asyncio.gather(first, *crowd, urgent)
        assert model.runs == [[0], [9, 1, 2, 3], [4]]

    play(scenario)


async def test_lengths__sequences_of_different_lengths__share_a_batch() -> None:
    shape = (DYNAMIC, DYNAMIC)
    x_spec, y_spec = (TensorSpec(name=n, dtype=Datatype.FP32, shape=shape) for n in "xy")
    lengths = LengthPadding(Signature(inputs=(x_spec,), outputs=(y_spec,)), {"x": 0})

    meter, model = Meter(), GatedModel()
    batching = BatchExecutor(model, LIMITS, SystemClock(), meter, lengths=lengths)
    sizes = (3, 5, 1, 40)
    answers = await asyncio.gather(
        *(batching.submit({"x": np.full((1, n), n, np.float32)}, 20) for n in sizes)
    )
    assert [y(answer) for answer in answers] == [[n + 1] * n for n in sizes]
    assert [stats.rows for stats in meter.batches] == [3, 1]  # 40 is of another bucket
    batching.close()


def test_close__request_is_running__it_fails() -> None:
    async def scenario(batching: BatchExecutor, model: GatedModel, _meter: Meter) -> None:
        model.gate.clear()
        future = batching.submit(x(1), 20)
        await until(lambda: model.started)
        batching.close()
        assert await error_of(future) is ErrorCode.UNAVAILABLE

    play(scenario)


class Exiting(GatedModel):
    """Ends its thread's work for a negative row by what is no `Exception`."""

    def run(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        if (inputs["x"] < 0).any():
            raise SystemExit("negative")
        return super().run(inputs)


def test_submit__run_raises_system_exit__next_batch_runs() -> None:
    async def scenario(batching: BatchExecutor, _model: GatedModel, _meter: Meter) -> None:
        lost = [batching.submit(x(value), 20) for value in (1, -2)]
        assert [await error_of(future) for future in lost] == [ErrorCode.INTERNAL] * 2
        assert y(await batching.submit(x(3), 20)) == [4]

    play(scenario, model=Exiting())


def test_submit__inputs_in_another_order__share_a_batch() -> None:
    def pair(**widths: int) -> Arrays:
        return {name: np.ones((1, width), np.float32) for name, width in widths.items()}

    class Pairs(GatedModel):
        def check(self, inputs: Mapping[str, np.ndarray]) -> int:
            return int(inputs["a"].shape[0])

        def run(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
            return {"y": inputs["a"].sum(axis=1)}

    async def scenario(batching: BatchExecutor, _model: GatedModel, meter: Meter) -> None:
        wanted = [pair(a=3, b=5), pair(b=3, a=5), pair(b=5, a=3)]
        answers = await asyncio.gather(*(batching.submit(inputs, 5) for inputs in wanted))
        assert [y(answer) for answer in answers] == [[3], [5], [3]]
        assert [stats.rows for stats in meter.batches] == [2, 1]

    play(scenario, model=Pairs())
