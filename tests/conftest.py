"""What holds for every test."""

import pytest
from hypothesis import settings

# A test proves what is true, not how fast it was: this machine may be busy.
settings.register_profile("mlctl", deadline=None)
settings.load_profile("mlctl")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave tests that need a GPU out, unless the `-m` expression speaks of them."""
    if "gpu" in config.getoption("markexpr"):
        return
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    if gpu:
        config.hook.pytest_deselected(items=gpu)
        items[:] = [item for item in items if item not in gpu]
