"""Which skipped tests fail the run."""

from __future__ import annotations

import pytest

from tests.suite.skips import LIST, read_allowed_skips
from tests.test_architecture import ROOT

TESTS = """
import pytest

@pytest.mark.skipif(True, reason="needs a cluster at port 9092")
@pytest.mark.parametrize("case", [1, 2])
def test_cluster(case):
    pass

def test_other():
    pass
"""


def run(pytester: pytest.Pytester, allowed: str, *options: str) -> pytest.RunResult:
    pytester.makepyfile(test_one=TESTS)
    (pytester.path / "allowed.txt").write_text(allowed)
    return pytester.runpytest_inprocess(
        "-p", "tests.suite.skips", "-o", "allowed_skips=allowed.txt", *options
    )


@pytest.mark.parametrize("allowed", ["2 test_one.py needs a cluster at *", "3 test_one.py *"])
def test_skips__listed__run_passes(pytester: pytest.Pytester, allowed: str) -> None:
    assert run(pytester, f"# why\n{allowed}\n").ret == pytest.ExitCode.OK


@pytest.mark.parametrize(
    ("allowed", "limit"),
    [("", 0), ("1 test_one.py needs a cluster at *", 1), ("2 test_one.py needs a GPU", 0)],
)
def test_skips__more_than_listed__run_fails_and_names_them(
    pytester: pytest.Pytester, allowed: str, limit: int
) -> None:
    result = run(pytester, allowed)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    sentence = f"2 of test_one.py (allowed {limit}): needs a cluster at port 9092"
    result.stdout.fnmatch_lines([sentence.replace("[", "[[]")])


def test_skips__whole_module__is_counted(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_two="import pytest\npytest.skip('no', allow_module_level=True)")
    result = run(pytester, "2 test_one.py *")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["1 of test_two.py (allowed 0): no"])


def test_allowed_skips__each_line__names_a_file_of_tests() -> None:
    for line in read_allowed_skips(LIST):
        assert (ROOT / line.file).is_file(), line
