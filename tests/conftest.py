"""Settings of every test, and of the processes that tests start."""

import functools
import gc
import os
import signal
import sys
from collections.abc import Generator
from typing import Any

import httpx
import pytest

# Threads of OpenMP wait for one another in busy loops: where other work shares two cores, torch
# with two threads trains a small net seven times slower than with one.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Images of containers often switch bytecode files off. Each process of a run would then compile
# mlctl again, and pytest would rewrite the assertions of 450 files again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A background job of a shell ignores SIGINT, and every process started from it inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Each client of httpx reads all certificate authorities, for plain HTTP as well: 20 ms of CPU time
# for each poll of a server that starts. The clients of one process share them.
httpx_transports: Any = httpx._transports.default
httpx_transports.create_ssl_context = functools.cache(httpx_transports.create_ssl_context)

pytest_plugins = [
    "pytester",
    "tests.suite.connections",
    "tests.suite.examples",
    "tests.suite.skips",
    "tests.suite.slow",
    "tests.suite.temporary",
    "tests.suite.tour",
    "tests.support.registry_store",
    "tests.support.serving_fixtures",
]

_FIRST_FOLDERS = {"scenarios": 0, "examples": 1, "faults": 1}


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The event loop of `async def` tests; parametrize it to run a test on another one."""
    return "asyncio"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage meanwhile, nor later from what is there now: modules and tests stay.

    Tests that load further libraries collect as seldom as the command does (`cli/main.py`).
    """
    gc.disable()
    gc.set_threshold(50_000, 20, 100)
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Start with the longest files, and skip tests that need a GPU unless `-m` names them.

    Processes share the tests file by file, so a long file must not come last: scenarios, examples
    and faults come first, then files with slow tests, then the others.
    """
    slow_files = {item.path for item in items if item.get_closest_marker("slow")}

    def rank(item: pytest.Item) -> int:
        last = 2 + (item.path not in slow_files)
        return _FIRST_FOLDERS.get(item.path.parent.name, last)

    items.sort(key=rank)
    if "gpu" not in config.getoption("markexpr"):
        skip = pytest.mark.skip(reason="needs an NVIDIA GPU; run `pytest -m gpu`")
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(skip)
