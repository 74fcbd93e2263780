"""Every command of docs/tutorial.md runs, in order, and its code is that of the project.

Then the project is used as its README says beyond that page.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.run import run_page
from mlctl.examples.skeleton.create import create_project
from tests.support.command_line import Mlctl

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text()


def test_tutorial__code_that_it_shows__is_in_the_project(tmp_path: Path) -> None:
    (shown,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert shown in (create_project(tmp_path / "spirals").folder / "train.py").read_text()


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.timeout(1500)
def test_tutorial__every_command__exits_as_the_page_says(tmp_path: Path) -> None:
    assert run_page("docs/tutorial.md", tmp_path, 1400.0) is None
    use_the_transform_and_a_folder_as_registry(tmp_path / "spirals")


def use_the_transform_and_a_folder_as_registry(project: Path) -> None:
    """Optimize with the project's transform; push the Bento to a folder, and pull it again."""
    mlctl = Mlctl(project / ".mlctl", project)
    data = ("--data", "rows:evaluation", "--transform", "transform.py")
    mlctl.json("optimize", "spirals@candidate", *data, "--recipes", "fp32,fp16")
    built = mlctl.json("build", "spirals", "--push", "oci:bento")
    mlctl.json("pull", "oci:bento")
    shown = mlctl.json("show", built["digest"])
    assert [each["name"] for each in shown["signature"]["outputs"]] == ["label", "probability"]
    assert {each["recipe"] for each in shown["variants"]} == {"fp32", "fp16"}
    assert shown["bentos"] == [f"spirals:{shown['digest'][:12]}"]
