"""Requests of more rows than a batch: split into parts, joined with others, answered as one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import numpy as np
import pytest

from mlctl.bundle.arrays import Arrays
from mlctl.core.clock import SystemClock
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.online.batching.executor import BatchExecutor
from mlctl.services.online.batching.scheduler import Limits
from mlctl.services.online.batching.split import split_evenly
from tests.services.online.batching.test_executor import Meter, until, x, y


class Model:
    """Adds 1; a negative value fails its batch. `runs` are the rows of each run."""

    def __init__(self) -> None:
        self.runs: list[int] = []

    def check(self, inputs: Mapping[str, np.ndarray]) -> int:
        return int(inputs["x"].shape[0])

    def run(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        self.runs.append(len(inputs["x"]))
        if (inputs["x"] < 0).any():
            raise MlctlError(ErrorCode.INVALID_INPUT, "negative")
        return {"y": inputs["x"] + 1}


Scenario = Callable[[BatchExecutor, Model], Awaitable[None]]


def play(scenario: Scenario, max_queue_rows: int = 100) -> Meter:
    meter = Meter()

    async def main() -> None:
        model, limits = Model(), Limits(max_rows=4, max_queue_rows=max_queue_rows)
        batching = BatchExecutor(model, limits, SystemClock(), meter)
        try:
            await asyncio.wait_for(scenario(batching, model), 30)
        finally:
            batching.close()

    asyncio.run(main())
    return meter


@pytest.mark.parametrize(
    ("rows", "sizes"), [(5, [2, 3]), (8, [4, 4]), (9, [3, 3, 3]), (10, [3, 3, 4])]
)
def test_split_evenly__any_rows__parts_are_about_equal_and_complete(
    rows: int, sizes: list[int]
) -> None:
    parts = list(split_evenly(x(*range(rows)), rows, 4))
    assert sorted(count for count, _ in parts) == sizes
    assert [count for count, _ in parts] == [len(part["x"]) for _, part in parts]
    assert (
        np.concatenate([part["x"] for _, part in parts]).tolist() == x(*range(rows))["x"].tolist()
    )


def test_large_request__beside_small_ones__shares_their_batches() -> None:
    async def scenario(batching: BatchExecutor, model: Model) -> None:
        large = batching.submit(x(*range(9)), 20)
        small = [batching.submit(x(value), 20) for value in (50, 60)]
        assert y(await large) == [value + 1 for value in range(9)]
        assert [y(await each) for each in small] == [[51], [61]]
        assert sum(model.runs) == 11
        assert model.runs == [4, 4, 3]  # two parts lead with a small one each

    play(scenario)


def test_large_request__one_part_fails__fails_once_and_leaves_nothing() -> None:
    async def scenario(batching: BatchExecutor, _model: Model) -> None:
        large = batching.submit(x(1, 2, 3, 4, 5, -6, 7, 8, 9, 10), 20)
        with pytest.raises(MlctlError, match="negative"):
            await large
        await until(lambda: not batching.waiting_rows)
        assert y(await batching.submit(x(1), 20)) == [2]

    play(scenario)


def test_large_request__cancelled__withdraws_all_parts() -> None:
    async def scenario(batching: BatchExecutor, model: Model) -> None:
        large = batching.submit(x(*range(20)), 20)
        large.cancel()
        await until(lambda: not batching.waiting_rows)
        assert await batching.drain(5)
        assert sum(model.runs) <= 4

    play(scenario)


def test_large_request__not_all_of_it_has_room__is_rejected_as_a_whole() -> None:
    async def scenario(batching: BatchExecutor, _model: Model) -> None:
        first = batching.submit(x(*range(30)), 20)
        with pytest.raises(MlctlError) as rejected:
            batching.submit(x(*range(20)), 20)
        assert rejected.value.code is ErrorCode.QUEUE_FULL
        assert batching.waiting_rows == 30
        with pytest.raises(MlctlError) as too_large:
            batching.submit(x(*range(41)), 20)
        assert too_large.value.code is ErrorCode.PAYLOAD_TOO_LARGE
        assert len(y(await first)) == 30

    play(scenario, max_queue_rows=40)


def test_stream__model_without_steps__has_one_piece() -> None:
    async def scenario(batching: BatchExecutor, _model: Model) -> None:
        pieces = [piece async for piece in batching.stream(x(*range(6)), 20)]
        assert [y(piece) for piece in pieces] == [[1, 2, 3, 4, 5, 6]]
        with pytest.raises(MlctlError, match="negative"):
            await anext(batching.stream(x(-1), 20))

    play(scenario)


def test_large_requests__half_of_the_queue_is_full__leave_the_rest_to_small_ones() -> None:
    async def scenario(batching: BatchExecutor, _model: Model) -> None:
        first = batching.submit(x(*range(80)), 20)
        with pytest.raises(MlctlError, match="80 rows wait already, the limit is 100") as rejected:
            batching.submit(x(*range(40)), 20)
        assert rejected.value.code is ErrorCode.QUEUE_FULL
        small = [batching.submit(x(value), 20) for value in range(60)]
        assert [y(await each) for each in small] == [[value + 1] for value in range(60)]
        assert y(await first) == [value + 1 for value in range(80)]
        assert y(await batching.submit(x(*range(150)), 20))[-1] == 150  # alone

    play(scenario, max_queue_rows=200)
