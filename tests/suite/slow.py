"""Enforce the marker `slow`, so that the quick suite stays quick: a pytest plugin.

A test without the marker fails when it, or one of its fixtures, starts a process, and when it
uses more CPU time than `QUICK_CPU_SECONDS`. CPU time and not wall time, so that a busy machine
fails nobody's test; under coverage, which takes most of it, the time is not judged. The junit file
has the CPU time of each test as `cpu_seconds`.
"""

from __future__ import annotations

import multiprocessing.util
import os
import resource
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

# Far above what a quick test takes: the first test of a process also imports the libraries.
QUICK_CPU_SECONDS = 8.0
# Libraries run these while they are imported, to find out where they are.
_PROBES = {"arch", "ldconfig", "uname"}

_started: list[str] = []
_started_by_fixture: dict[int, list[str]] = {}
_cpu_seconds = pytest.StashKey[float]()
_first_process = pytest.StashKey[int]()


def _on_audit_event(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "subprocess.Popen":
        executable, command = arguments[0], arguments[1]
        words = [command] if isinstance(command, str | bytes) else list(command)
        program = os.fsdecode(executable or words[0])
        if Path(program).name not in _PROBES:
            _started.append(" ".join(os.fsdecode(word) for word in words)[:200])
    elif event in {"os.fork", "os.forkpty", "os.posix_spawn", "os.system"}:
        _started.append(event)


# Under coverage the hook would run while a thread's tracer is set, and CPython 3.11 fails to set
# another thread's meanwhile.
if sys.gettrace() is None:
    sys.addaudithook(_on_audit_event)

# multiprocessing starts its processes past every audit event.
_spawn = multiprocessing.util.spawnv_passfds


def _recorded_spawn(path: Any, args: Any, passfds: Any) -> int:
    _started.append("multiprocessing: " + " ".join(os.fsdecode(word) for word in args)[:200])
    return _spawn(path, args, passfds)


multiprocessing.util.spawnv_passfds = _recorded_spawn


def cpu_seconds() -> float:
    """Return the CPU time of this process and of the children it has waited for."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in usage)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any],
) -> Generator[None, object, object]:
    before = len(_started)
    try:
        return (yield)
    finally:
        if len(_started) > before:
            _started_by_fixture[id(fixturedef)] = _started[before:]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    item.stash[_first_process] = len(_started)
    item.stash[_cpu_seconds] = cpu_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Check after the test's own code; what a fixture does at its end belongs to its start."""
    result = yield
    used = cpu_seconds() - item.stash[_cpu_seconds]
    item.user_properties.append(("cpu_seconds", round(used, 2)))
    if item.get_closest_marker("slow") is None:
        problem = _why_slow(item, used)
        if problem:
            pytest.fail(f"{problem}: mark the test `slow`, or make it quick", pytrace=False)
    return result


def _why_slow(item: pytest.Item, used: float) -> str | None:
    started = _started[item.stash[_first_process] :] or _started_by_fixtures_of(item)
    if started:
        return f"it starts a process ({started[0]})"
    if used > QUICK_CPU_SECONDS and sys.gettrace() is None:
        return f"it used {used:.1f} s of CPU time (limit {QUICK_CPU_SECONDS:g} s)"
    return None


def _started_by_fixtures_of(item: pytest.Item) -> list[str]:
    """Return what a fixture started for an earlier test, which this test uses as well."""
    assert isinstance(item, pytest.Function)
    return [
        process
        for definition in item._request._fixture_defs.values()
        for process in _started_by_fixture.get(id(definition), ())
    ]
