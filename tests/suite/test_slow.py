"""What a test without the marker `slow` may not do."""

from __future__ import annotations

import sys

import pytest

from tests.suite import slow

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.gettrace() is not None, reason="coverage runs without the audit hook"),
]

STARTS = """
import multiprocessing, os, subprocess, sys
import pytest

def work():
    pass

@pytest.fixture(scope="module")
def server():
    subprocess.run([sys.executable, "-c", ""], check=True)

{marker}
def test_one({fixture}):
    {body}
"""


def run(pytester: pytest.Pytester, **parts: str) -> pytest.RunResult:
    values = {"marker": "", "fixture": "", "body": "pass", **parts}
    pytester.makepyfile(STARTS.format(**values) + parts.get("more", ""))
    return pytester.runpytest_inprocess("-p", "tests.suite.slow")


@pytest.mark.parametrize(
    "body",
    [
        "subprocess.run([sys.executable, '-c', ''], check=True)",
        "os.system('true')",
        "p = multiprocessing.get_context('spawn').Process(target=os.getpid); p.start(); p.join()",
        "p = multiprocessing.get_context('fork').Process(target=work); p.start(); p.join()",
    ],
)
def test_slow__unmarked_test_starts_a_process__fails(pytester: pytest.Pytester, body: str) -> None:
    result = run(pytester, body=body)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*it starts a process (*): mark the test `slow`*"])


def test_slow__marked_test_starts_a_process__passes(pytester: pytest.Pytester) -> None:
    body = "subprocess.run([sys.executable, '-c', ''], check=True)"
    run(pytester, marker="@pytest.mark.slow", body=body).assert_outcomes(passed=1)


@pytest.mark.parametrize(
    "more",
    [
        "\ndef test_two(server):\n    pass\n",
        "\ndef test_two(request):\n    request.getfixturevalue('server')\n",
    ],
)
def test_slow__fixture_of_an_earlier_test_started_it__fails(
    pytester: pytest.Pytester, more: str
) -> None:
    """The second test starts nothing itself: it finds the server of the first one."""
    result = run(pytester, marker="@pytest.mark.slow", fixture="server", more=more)
    result.assert_outcomes(passed=1, failed=1)


def test_slow__unmarked_test_computes_too_long__fails(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow, "QUICK_CPU_SECONDS", 0.01)
    result = run(pytester, body="sum(range(5_000_000))")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*of CPU time (limit 0.01 s): mark the test `slow`*"])
