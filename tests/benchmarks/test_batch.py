"""The comparison of ways to score a file: what it counts, and that it looks at the answers."""

import argparse
import sys

import pytest

from benchmarks.batch.__main__ import run_model
from benchmarks.batch.measure import measure


def test_a_command_is_measured_with_what_it_starts() -> None:
    work = "x = 0\nwhile process_time() < 0.3: x += 1"
    child = f"from time import process_time\n{work}"
    code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}], check=True)"
    cost = measure([sys.executable, "-c", code])
    assert cost.cpu_seconds >= 0.3
    assert cost.seconds >= 0.3
    assert cost.mebibytes > 5


def test_a_command_that_fails_is_told_with_its_words() -> None:
    with pytest.raises(SystemExit, match="not today"):
        measure([sys.executable, "-c", "raise SystemExit('not today')"])


@pytest.mark.slow
@pytest.mark.parametrize("wide", [False, True])
def test_ways_give_the_same_answers(wide: bool) -> None:
    given = argparse.Namespace(scale=0.0015, rounds=1, threads=2, wide=wide, python=sys.executable)
    costs = run_model("light", ("ours", "loop"), given)
    assert [len(each) for each in costs.values()] == [1, 1]
