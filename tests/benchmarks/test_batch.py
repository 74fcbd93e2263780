"""The comparison of engines that score a file: its counts, and its check of the answers."""

import argparse
import sys
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet

from benchmarks.batch import engines
from benchmarks.batch.__main__ import command_of, run_model, write_rows
from benchmarks.batch.measure import measure

pytestmark = pytest.mark.slow


def test_measure__command_with_a_child__counts_both() -> None:
    work = "x = 0\nwhile process_time() < 0.15: x += 1"
    child = f"from time import process_time\n{work}"
    code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}], check=True)"
    cost = measure([sys.executable, "-c", code])
    assert cost.cpu_seconds >= 0.15
    assert cost.seconds >= 0.15
    assert cost.mebibytes > 5


def test_measure__command_fails__shows_its_message() -> None:
    with pytest.raises(SystemExit, match="not today"):
        measure([sys.executable, "-c", "raise SystemExit('not today')"])


@pytest.mark.slow
def test_engines__the_same_rows__give_the_same_answers() -> None:
    given = argparse.Namespace(scale=0.0015, rounds=1, threads=2, wide=False, python=sys.executable)
    costs = run_model("light", ("ours", "loop"), given)
    assert [len(each) for each in costs.values()] == [1, 1]


def test_write_rows__wide__are_the_same_rows(tmp_path: Path) -> None:
    found = []
    for wide in (False, True):
        folder = tmp_path / str(wide)
        folder.mkdir()
        write_rows(folder / "rows.parquet", 300, wide=wide)
        command = command_of("loop", sys.executable, folder, 64, 1)
        assert ("--wide" in command) == wide
        found.append(engines.matrix(parquet.read_table(folder / "rows.parquet")))
    assert found[0].shape == (300, 64)
    np.testing.assert_array_equal(found[0], found[1])
