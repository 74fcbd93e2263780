"""What `mlctl init` writes; the project is used in test_tutorial.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
from click.testing import CliRunner

from mlctl.cli.main import cli
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.examples.skeleton.create import TEMPLATES, create_project
from mlctl.rollout.client.spec_file import read_spec
from mlctl.rollout.domain.spec import RolloutSpec


def test_init__new_folder__names_the_model_after_it(tmp_path: Path) -> None:
    project = create_project(tmp_path / "Fast Net")
    assert project.model == "fast-net"
    assert {file.relative_to(project.folder).as_posix() for file in project.files} == set(TEMPLATES)
    assert 'MODEL = "fast-net"' in (project.folder / "train.py").read_text()
    assert "<{" not in "".join(file.read_text() for file in project.files)


def test_init__rollout_file__describes_a_rollout(tmp_path: Path) -> None:
    project = create_project(tmp_path / "net")
    spec = RolloutSpec(**read_spec(project.folder / "rollout.yaml"))
    assert (spec.steps[-1], spec.max_p99_ms, spec.keep_previous_seconds) == (100, 50, 3600)


def test_init__folder_with_a_space__prints_a_command_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, ["init", "my net"])
    assert "Next: cd 'my net' && . ./.env" in result.stderr


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
