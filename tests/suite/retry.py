"""Run a test once more, alone, if it is marked `may_stall` and it failed: a pytest plugin.

Some tests wait for real processes on a machine that other work may stall. `--retry-stalled` gives
those tests, and no others, a second run in a process of its own. The run passes only if every
test that failed was such a test and passes alone; the summary lists them, with the first failure.

Never retried: a crash of a worker process, and leaks (warnings, which are errors here). Neither
has to do with a busy machine, and both would disappear in a second run.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from dataclasses import dataclass, field

import pytest

# More failures than these are no accident.
MAX_RETRIES = 5


@dataclass(slots=True)
class Retries:
    """The failures of the run, and the tests that passed in their second run."""

    failures: list[pytest.TestReport | pytest.CollectReport] = field(default_factory=list)
    passed: list[pytest.TestReport] = field(default_factory=list)
    failed_again: list[str] = field(default_factory=list)

    def retriable(self) -> list[pytest.TestReport]:
        """Return the failures if all of them may be retried, else none."""
        found = [
            each
            for each in self.failures
            if isinstance(each, pytest.TestReport) and getattr(each, "may_stall", False)
        ]
        tests = {each.nodeid for each in found}
        return found if len(found) == len(self.failures) and len(tests) <= MAX_RETRIES else []


_retries = pytest.StashKey[Retries]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--retry-stalled",
        action="store_true",
        help="run failed tests marked `may_stall` once more, alone",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("retry_stalled") and not hasattr(config, "workerinput"):
        plugin = RetryPlugin(config)
        config.pluginmanager.register(plugin, "retry-stalled")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note on the report, which workers send to the main process, whether to retry the test."""
    report = yield
    if report.failed and item.get_closest_marker("may_stall"):
        assert call.excinfo is not None
        vars(report)["may_stall"] = not is_leak(call.excinfo.value)
    return report


def is_leak(error: BaseException) -> bool:
    """Return whether `error` is a warning, or a group of errors with one in it."""
    if isinstance(error, BaseExceptionGroup):
        return any(is_leak(each) for each in error.exceptions)
    return isinstance(error, Warning)


class RetryPlugin:
    """Collects the failures in the main process, and retries at the end of the session."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._retries = Retries()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._retries.failures.append(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._retries.failures.append(report)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Retry when all workers have ended, and let the run pass if every retry does."""
        if session.exitstatus != pytest.ExitCode.TESTS_FAILED:
            return
        retries = self._retries
        for report in retries.retriable():
            if report.nodeid in retries.failed_again:
                continue
            if self._passes_alone(report.nodeid):
                retries.passed.append(report)
            else:
                retries.failed_again.append(report.nodeid)
        if retries.passed and not retries.failed_again:
            session.exitstatus = pytest.ExitCode.OK
            reporter = self._config.pluginmanager.get_plugin("terminalreporter")
            if reporter is not None:
                reporter.stats["retried"] = reporter.stats.pop("failed", [])
                reporter.stats["retried"] += reporter.stats.pop("error", [])

    def _passes_alone(self, nodeid: str) -> bool:
        command = [sys.executable, "-m", "pytest", "--quiet", "-p", "no:xdist", nodeid]
        done = subprocess.run(command, cwd=self._config.rootpath, check=False)
        return done.returncode == pytest.ExitCode.OK

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """List the tests that were retried, each with its first failure."""
        retries = self._retries
        if not retries.passed and not retries.failed_again:
            return
        terminalreporter.section("retried")
        for report in retries.passed:
            terminalreporter.line(report.longreprtext)
            terminalreporter.line(f"RETRIED {report.nodeid}: failed first, passed alone")
        for nodeid in retries.failed_again:
            terminalreporter.line(f"RETRIED {nodeid}: failed again, alone")
