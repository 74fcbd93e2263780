"""The commands of the how-to pages that are marked `sh` run as they are written."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from docs.run import CommandBlock, command_blocks, run_page, script, unexplained_blocks

PAGE = """
```sh
true
```

```
mlctl doctor
```

<!-- exits 8 -->

```sh
false
```
"""


def test_blocks__marked_sh__run_with_their_exit_codes() -> None:
    assert command_blocks(PAGE) == [CommandBlock("true\n"), CommandBlock("false\n", 8)]
    assert 'test "$code" -eq 8' in script(command_blocks(PAGE), 8123)


def test_blocks__neither_run_nor_explained__are_found() -> None:
    assert unexplained_blocks(PAGE, runs=True) == ["mlctl doctor\n"]
    assert unexplained_blocks("```sh\nmlctl up\n```\n", runs=False) == ["mlctl up\n"]
    assert unexplained_blocks("<!-- not run: takes a day -->\n" + PAGE, runs=False) == []


@pytest.mark.slow
def test_stream_page__a_stream_in_a_minute__answers_the_message(tmp_path: Path) -> None:
    assert run_page("docs/stream.md", tmp_path) is None
    output = (tmp_path / "output.log").read_text()
    assert "Exactly once" in output
    assert '"id":1' in output.splitlines()[-1].replace(" ", "")


@pytest.mark.slow
def test_batch_page__a_folder_with_a_bad_row__is_scored_and_the_row_rejected_again(
    tmp_path: Path,
) -> None:
    assert run_page("docs/batch.md", tmp_path) is None
    (part,) = (tmp_path / "scores").glob("*.parquet")
    assert pq.read_table(part).num_rows == 199
    assert pq.read_table(tmp_path / "scores" / "_mlctl" / "quarantine").num_rows == 1
    output = (tmp_path / "output.log").read_text()
    assert "1 of 1 rows are bad, more than --max-errors 1% allows" in output
    assert "core-seconds" in output
