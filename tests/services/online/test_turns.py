"""Turns of the event loop: who waits, and for whom."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Iterator
from time import monotonic, thread_time

import pytest

from mlctl.services.online.turns import Turns, turns_of


class Link(asyncio.Transport):
    """A server's side of a connection over loopback, and the client's."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.client = socket.create_connection(listener.getsockname())
            self.server = listener.accept()[0]
        super().__init__({"socket": self.server})
        self.aborted = False

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True


@pytest.fixture
def link() -> Iterator[Link]:
    made = Link()
    yield made
    made.client.close()
    made.server.close()


async def ticks(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_turns__one_connection_spent_more_than_its_share__others_come_first(
    link: Link,
) -> None:
    turns, order = Turns(share=1.0), list[str]()
    turns.wait(link, lambda: order.append("large"), debt=2.5)
    turns.wait(link, lambda: order.append("small"))
    turns.wait(link, lambda: order.append("rested"), debt=-0.5)
    await ticks(10)
    assert order == ["rested", "small", "large"]


async def test_turns__endless_work__lets_the_loop_go_on_in_each_tick(link: Link) -> None:
    turns, taken, tick = Turns(share=0.05), 0, 0

    def work() -> None:
        nonlocal taken
        taken += 1
        if tick < 5:
            turns.wait(link, work)

    turns.wait(link, work)
    for tick in range(6):  # noqa: B007 - `work` reads it
        await asyncio.sleep(0)
    assert taken > 5  # several turns in a tick, but never all


async def test_debt__time_in_which_a_connection_rested__counts_as_a_part_of_all(link: Link) -> None:
    turns = Turns(share=1.0)
    assert turns.debt(spent=3.0, rested=0.0) == 2.0
    assert turns.debt(spent=3.0, rested=2.0) == 0.0
    for _ in range(3):
        turns.wait(link, lambda: None)
    assert turns.debt(spent=3.0, rested=2.0) == 1.5


async def test_clock__connections_wait__is_processor_time(link: Link) -> None:
    turns = Turns()
    assert turns.clock is monotonic
    turns.wait(link, lambda: None)
    assert turns.clock is thread_time
    await ticks(2)
    assert turns.clock is monotonic


@pytest.mark.skipif(sys.platform != "linux", reason="reads the kernel's state of a connection")
@pytest.mark.parametrize("received", [b"", b"answer"])  # a FIN, or a reset
async def test_turns__client_ended_its_connection__nothing_is_done_for_it(
    link: Link, received: bytes
) -> None:
    turns, done = Turns(), list[int]()
    link.server.sendall(received)
    link.client.sendall(b"request")
    link.client.close()
    turns.wait(link, lambda: done.append(1))
    await ticks(2)
    assert link.aborted
    assert not done


async def test_turns_of__one_loop__are_the_same_for_all_servers() -> None:
    loop = asyncio.get_running_loop()
    assert turns_of(loop) is turns_of(loop)
