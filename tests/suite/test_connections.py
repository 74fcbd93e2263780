"""A connection that a test leaves open fails that test, and no later one."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow  # like the other plugins' tests, it runs pytest once more

LEAVES_ONE = """
import asyncio, socket

async def main(close):
    async def serve(reader, writer):
        await asyncio.sleep(0)
        if close:
            writer.close()
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    with socket.create_connection(server.sockets[0].getsockname()):
        await asyncio.sleep(0.05)
        server.close()

def test_left():
    asyncio.run(main(close=False))

def test_closed():
    asyncio.run(main(close=True))
"""


def test_connections__left_open_at_the_end_of_the_loop__fail_their_own_test(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(LEAVES_ONE)
    result = pytester.runpytest_inprocess("-p", "tests.suite.connections", "-W", "error")
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*connections open as their event loop closed:*"])
    result.stdout.fnmatch_lines(["ERROR *::test_left*"])


ENDS_WITH_THE_SERVER = """
import asyncio, gc, socket

async def main(ticks):
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    with socket.create_connection(server.sockets[0].getsockname()):
        for _ in range(ticks):
            await asyncio.sleep(0)
        server.close()
        await asyncio.sleep(0.05)

def test_accepted():
    for ticks in range(5):
        asyncio.run(main(ticks))
        gc.collect()
"""


def test_connections__accepted_in_the_servers_last_tick__are_closed(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(ENDS_WITH_THE_SERVER)
    result = pytester.runpytest_inprocess("-p", "tests.suite.connections", "-W", "error")
    result.assert_outcomes(passed=1)
