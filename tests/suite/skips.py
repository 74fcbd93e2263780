"""Fail a run that skips a test which `tests/allowed_skips.txt` does not list: a pytest plugin.

Tests are skipped where a machine lacks something (a GPU, a Kafka cluster). The list says which and
why, so a test cannot stop running without a change that a reviewer sees. A line is

    NUMBER  FILE  REASON

and allows at most NUMBER skipped cases of FILE for REASON, in which `*` stands for any text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

LIST = Path(__file__).parents[1] / "allowed_skips.txt"


@dataclass(frozen=True, slots=True)
class AllowedSkips:
    """One line of the list."""

    max_cases: int
    file: str
    reason: str


def read_allowed_skips(path: Path) -> list[AllowedSkips]:
    """Return the lines of the list; lines that begin with # are comments."""
    lines = [line.split(maxsplit=2) for line in path.read_text().splitlines()]
    return [
        AllowedSkips(int(line[0]), line[1], line[2]) for line in lines if line and line[0] != "#"
    ]


def unlisted(skips: Counter[tuple[str, str]], allowed: Sequence[AllowedSkips]) -> list[str]:
    """Return one sentence for each file and reason with more skips than `allowed` has."""
    problems = []
    for (file, reason), count in sorted(skips.items()):
        limits = [
            each.max_cases
            for each in allowed
            if each.file == file and fnmatchcase(reason, each.reason)
        ]
        if count > max(limits, default=0):
            problems.append(f"{count} of {file} (allowed {max(limits, default=0)}): {reason}")
    return problems


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("allowed_skips", "the list of tests that may be skipped", default=str(LIST))


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        path = config.rootpath / str(config.getini("allowed_skips"))
        config.pluginmanager.register(SkipsPlugin(read_allowed_skips(path)), "allowed-skips")


class SkipsPlugin:
    """Counts the skipped cases in the main process, and compares them at the end."""

    def __init__(self, allowed: Sequence[AllowedSkips]) -> None:
        self._allowed = allowed
        self._skips: Counter[tuple[str, str]] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._count(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._count(report)

    def _count(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped and isinstance(report.longrepr, tuple):
            reason = report.longrepr[2].removeprefix("Skipped: ")
            self._skips[report.nodeid.partition("::")[0], reason] += 1

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, None, None]:
        """Decide after every other plugin: a retry may have let the run pass."""
        yield
        if session.exitstatus == pytest.ExitCode.OK and unlisted(self._skips, self._allowed):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        problems = unlisted(self._skips, self._allowed)
        if problems:
            terminalreporter.section("skipped tests that tests/allowed_skips.txt does not list")
            for problem in problems:
                terminalreporter.line(problem)
