"""Give Hypothesis the same examples in each process and each run: a pytest plugin.

`derandomize=True` seeds the examples of a test by its source. But Hypothesis also draws constants
that it finds in the project's modules which are loaded at that moment, and which these are depends
on the tests that the process ran before. The profile `explore` draws them still.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

PROFILE = "mlctl"

# No deadline: the machine may be busy.
settings.register_profile(PROFILE, deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile(PROFILE)


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    """Leave the constants of modules out, unless the command line names another profile."""
    # There is no setting for it.
    source: Any = providers
    if settings.get_current_profile_name() == PROFILE:
        source._get_local_constants = lambda: source._local_constants
