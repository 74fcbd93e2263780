"""Every command of docs/tutorial.md runs, in order, and its code is that of the project."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.run import run_page
from examples.skeleton.create import create_project

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text()


def test_tutorial__code_that_it_shows__is_in_the_project(tmp_path: Path) -> None:
    (shown,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert shown in (create_project(tmp_path / "spirals").folder / "train.py").read_text()


@pytest.mark.slow
@pytest.mark.may_stall
@pytest.mark.timeout(900)
def test_tutorial__every_command__exits_as_the_page_says(tmp_path: Path) -> None:
    assert run_page("docs/tutorial.md", tmp_path, 840.0) is None
