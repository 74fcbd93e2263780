"""Turns of the event loop: who waits, and for whom."""

from __future__ import annotations

import asyncio

from services.online.turns import Turns, turns_of


async def test_turns__one_connection_spent_more_than_its_share__others_come_first() -> None:
    turns, order = Turns(share=1.0), list[str]()
    turns.wait(lambda: order.append("large"), spent=3.5)
    turns.wait(lambda: order.append("small"))
    while len(order) < 2:  # noqa: ASYNC110 - ticks count
        await asyncio.sleep(0)
    assert order == ["small", "large"]


async def test_turns__endless_work__lets_the_loop_go_on_in_each_tick() -> None:
    turns, taken, ticks = Turns(), 0, 0

    def work() -> None:
        nonlocal taken
        taken += 1
        if ticks < 5:
            turns.wait(work)

    turns.wait(work)
    for ticks in range(6):  # noqa: B007 - `work` reads it
        await asyncio.sleep(0)
    assert taken > 5  # several turns in a tick, but never all


async def test_turns_of__one_loop__are_the_same_for_all_servers() -> None:
    loop = asyncio.get_running_loop()
    assert turns_of(loop) is turns_of(loop)
