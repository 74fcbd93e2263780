"""Every command of docs/tutorial.md runs, in order, and its code is that of the project.

Then the project is used as its README says beyond that page.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from examples.skeleton.create import create_project
from rollout.drivers.local.ports import free_ports
from tests.support.mlctl import Mlctl

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text()
# A command that fails on purpose has a comment with its exit code in front of its block.
BLOCK = re.compile(r"(?:<!-- exits (\d+) -->\n\n)?```sh\n(.*?)```", re.DOTALL)


def tutorial_script(port: int) -> str:
    """Return all command blocks as one bash script that stops at the first unexpected exit code."""
    lines = ["set -eux"]
    for code, commands in BLOCK.findall(PAGE):
        text = commands.replace("8000", str(port))
        if code:
            lines += ["set +e", text, f'code=$?; set -e; test "$code" -eq {code}']
        else:
            lines.append(text)
    return "\n".join(lines)


def test_tutorial__code_that_it_shows__is_in_the_project(tmp_path: Path) -> None:
    (shown,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert shown in (create_project(tmp_path / "spirals").folder / "train.py").read_text()


@pytest.mark.slow
@pytest.mark.may_stall
@pytest.mark.timeout(900)
def test_tutorial__every_command__exits_as_the_page_says(tmp_path: Path) -> None:
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MLCTL_", "MLFLOW_", "BENTOML_"))
    }
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    log = tmp_path / "log.txt"
    with log.open("w") as output:
        # Its own session, so that the load in the background ends with it.
        script = subprocess.Popen(
            ["bash", "-c", tutorial_script(free_ports(1)[0])],
            cwd=tmp_path,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = script.wait(timeout=840)
        finally:
            if (tmp_path / "spirals").exists():
                subprocess.run(
                    ["bash", "-c", "cd spirals && . ./.env && mlctl down shop"],
                    cwd=tmp_path,
                    env=environment,
                    capture_output=True,
                    check=False,
                )
            with contextlib.suppress(ProcessLookupError):  # the load ended by itself
                os.killpg(script.pid, signal.SIGKILL)
    assert code == 0, log.read_text()[-6000:]
    use_the_transform_and_a_folder_as_registry(tmp_path / "spirals")


def use_the_transform_and_a_folder_as_registry(project: Path) -> None:
    """Optimize with the project's transform; push the Bento to a folder, and pull it again."""
    mlctl = Mlctl(project / ".mlctl", project)
    data = ("--data", "rows:evaluation", "--transform", "transform.py")
    mlctl.json("optimize", "spirals@candidate", *data, "--recipes", "fp32,fp16")
    built = mlctl.json("build", "spirals", "--push", "bento")
    (pushed,) = (project / "bento").iterdir()
    mlctl.json("pull", f"folder:{pushed}")
    shown = mlctl.json("show", built["digest"])
    assert [each["name"] for each in shown["signature"]["outputs"]] == ["label", "probability"]
    assert {each["recipe"] for each in shown["variants"]} == {"fp32", "fp16"}
    assert shown["bentos"] == [f"spirals:{shown['digest'][:12]}"]
