"""Which failures get a second run, and what the run reports about it."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow

# A test that fails in its first run and passes in its second.
STALLS = """
import pytest, pathlib

{marker}
def test_stalls():
    marker = pathlib.Path("ran")
    if not marker.exists():
        marker.touch()
        {failure}
"""


def run(
    pytester: pytest.Pytester,
    *options: str,
    marker: str = "@pytest.mark.may_stall",
    failure: str = "raise AssertionError('not within 120 s')",
    more: str = "",
) -> pytest.RunResult:
    pytester.makepyfile(test_one=STALLS.format(marker=marker, failure=failure) + more)
    return pytester.runpytest_inprocess(
        "-p", "tests.suite.retry", "-W", "error", "--retry-stalled", *options
    )


def test_retry__stalled_test_passes_alone__run_passes_and_lists_it(
    pytester: pytest.Pytester,
) -> None:
    result = run(pytester, "--junit-xml=tests.xml")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(
        ["*not within 120 s*", "RETRIED test_one.py::test_stalls: failed first, passed alone"]
    )
    result.stdout.fnmatch_lines(["*1 retried*"])
    assert "not within 120 s" in (pytester.path / "tests.xml").read_text()


def test_retry__without_the_option__fails(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(STALLS.format(marker="@pytest.mark.may_stall", failure="assert 0"))
    result = pytester.runpytest_inprocess("-p", "tests.suite.retry")
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_retry__test_without_the_marker__fails(pytester: pytest.Pytester) -> None:
    result = run(pytester, marker="")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.no_fnmatch_line("*RETRIED*")


def test_retry__another_test_failed_too__retries_none(pytester: pytest.Pytester) -> None:
    result = run(pytester, more="\ndef test_other():\n    assert 0\n")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.no_fnmatch_line("*RETRIED*")


def test_retry__fails_again__run_fails_and_lists_it(pytester: pytest.Pytester) -> None:
    always = "\n@pytest.mark.may_stall\ndef test_broken():\n    assert 0\n"
    result = run(pytester, more=always)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["RETRIED test_one.py::test_broken: failed again, alone"])


@pytest.mark.parametrize(
    "failure",
    [
        "import warnings; warnings.warn('unclosed socket', ResourceWarning)",
        # An object that is collected while its destructor raises: how a leaked task ends.
        "type('Leak', (), {'__del__': lambda self: 1 / 0})()",
        "import threading; t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()",
    ],
)
def test_retry__leak__fails(pytester: pytest.Pytester, failure: str) -> None:
    result = run(pytester, failure=failure)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.no_fnmatch_line("*RETRIED*")


def test_retry__worker_process_crashes__fails(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        STALLS.format(marker="@pytest.mark.may_stall", failure="import os; os._exit(3)")
    )
    result = pytester.runpytest_subprocess(
        "-p", "tests.suite.retry", "-p", "xdist.plugin", "-n", "1", "--retry-stalled"
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*crashed while running*"])
    result.stdout.no_fnmatch_line("*RETRIED*")
