"""Commands of the how-to pages that need no more than a bundle run as they are written.

Names of a Bento become the folder of a small bundle, whose input is `x` with four values.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.bundles import make_bundle

pytestmark = pytest.mark.slow
DOCS = Path(__file__).parents[2] / "docs"


def block(page: str, heading: str) -> str:
    """Return the first block of commands below a heading of a page."""
    below = (DOCS / page).read_text().partition(f"{heading}\n")[2]
    return below.split("```\n", 2)[1]


def run(folder: Path, commands: str) -> str:
    """Run `commands` in `folder` with bash, which stops at the first failure; return the output."""
    done = subprocess.run(
        ["bash", "-ec", re.sub(r"\bdigits(:\w+)?\b", "bundle", commands)],
        cwd=folder,
        env=os.environ
        | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "MLCTL_HOME": str(folder / "home"),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_bundle(tmp_path / "bundle")
    return tmp_path


def test_stream_page__a_stream_in_a_minute__answers_the_message(folder: Path) -> None:
    commands = block("stream.md", "## A stream in a minute").replace("image", "x")
    output = run(folder, commands.replace("* 64", "* 4"))
    assert "Exactly once" in output
    assert '"id":1' in output.splitlines()[-1].replace(" ", "")


def test_batch_page__score_and_estimate__run_on_a_folder(folder: Path) -> None:
    (folder / "rows").mkdir()
    table = pa.table({"id": [1, 2, 3], "x": [[1.0] * 4, [2.0] * 4, None]})
    pq.write_table(table, folder / "rows" / "rows.parquet")
    score = block("batch.md", "# Score tables").splitlines()[0]
    run(folder, f"{score} --max-errors 1")
    assert pq.read_table(folder / "scores").num_rows == 2
    again = block("batch.md", "## Bad rows").strip()
    assert "1 rejected rows" in run(folder, f"{again} --max-errors 100%")
    assert "core" in run(folder, block("batch.md", "## Time and cost before you run it"))
