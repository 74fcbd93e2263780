"""The project that `mlctl init` writes works at once, up to a Bento."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from bundle.errors import ErrorCode, MlctlError
from examples.skeleton.create import TEMPLATES, create_project
from tests.support.mlctl import Mlctl


def test_init__new_folder__names_the_model_after_it(tmp_path: Path) -> None:
    project = create_project(tmp_path / "Fast Net")
    assert project.model == "fast-net"
    assert {file.relative_to(project.folder).as_posix() for file in project.files} == set(TEMPLATES)
    assert 'MODEL = "fast-net"' in (project.folder / "train.py").read_text()
    assert "<{" not in "".join(file.read_text() for file in project.files)


def test_init__workflow__is_yaml_with_both_jobs(tmp_path: Path) -> None:
    project = create_project(tmp_path / "net")
    workflow = yaml.safe_load((project.folder / ".github/workflows/release.yml").read_text())
    assert list(workflow["jobs"]) == ["build", "promote"]
    commands = [step.get("run", "") for step in workflow["jobs"]["build"]["steps"]]
    assert "mlctl parity net" in commands


def test_init__one_file_exists__writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "rows.py").write_text("mine")
    with pytest.raises(MlctlError, match=r"rows\.py already exists") as failed:
        create_project(tmp_path)
    assert failed.value.code is ErrorCode.INVALID_INPUT
    assert [each.name for each in tmp_path.iterdir()] == ["rows.py"]


@pytest.mark.slow
@pytest.mark.may_stall
def test_init__its_project__trains_optimizes_and_builds(tmp_path: Path) -> None:
    folder = tmp_path / "net"
    mlctl = Mlctl(tmp_path)
    assert mlctl.json("init", "net")["model"] == "net"
    environment = {**mlctl.environment, "MLCTL_HOME": str(folder / ".mlctl")}
    environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    script = (
        ". ./.env && python train.py --epochs 2 >&2"
        " && mlctl optimize net@candidate --data rows:evaluation --transform transform.py"
        " --recipes fp32,fp16 >&2"
        " && mlctl build net --push bento >&2"
        ' && mlctl pull "folder:$(echo bento/*)" --json >&2'
        " && mlctl show net --json"
    )
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert [each["name"] for each in shown["signature"]["outputs"]] == ["label", "probability"]
    assert {each["recipe"] for each in shown["variants"]} == {"fp32", "fp16"}
    assert shown["bentos"] == [f"net:{shown['digest'][:12]}"]
