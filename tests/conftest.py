"""What holds for every test, and for the processes that tests start."""

import os
import signal

import pytest
from hypothesis import settings

# OpenMP's threads wait for one another in busy loops: where other work shares two cores, torch
# with two threads trains a small net seven times slower than with one.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell's background ignores SIGINT, and so would all that is started from there.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A test proves what is true, not how fast it was: this machine may be busy.
# The same examples each time, so that a change fails by its own fault; look for new ones with
# `pytest --hypothesis-profile explore`.
settings.register_profile("mlctl", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile("mlctl")

pytest_plugins = ["tests.support.serving_fixtures"]

_BEGIN_WITH = {"scenarios": 0, "faults": 1}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the longest stories, and leave out what needs a GPU.

    `-m` with the word gpu keeps those. Where several processes share the tests, file by file,
    what is long must not come last.
    """
    items.sort(key=lambda item: _BEGIN_WITH.get(item.path.parent.name, len(_BEGIN_WITH)))
    if "gpu" in config.getoption("markexpr"):
        return
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    if gpu:
        config.hook.pytest_deselected(items=gpu)
        items[:] = [item for item in items if item not in gpu]
