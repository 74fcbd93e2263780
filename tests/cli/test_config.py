from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from mlctl.cli.main import cli

Run = Callable[..., Result]

CHOOSE = "[choose]\nrows-per-second = 77\n"
CHOICE = ("choose", "--used-by", "requests", "--rows-per-day", "1e7")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `mlctl` in a folder with the given mlctl.toml; variables are restored."""
    monkeypatch.chdir(tmp_path)
    for name in ("MLCTL_DEADLINE_MS", "MLCTL_THREADS", "MLCTL_WEBHOOK_TOKEN", "MLCTL_SAMPLE_DIR"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)

    def call(text: str, *arguments: str) -> Result:
        (tmp_path / "mlctl.toml").write_text(text)
        return CliRunner().invoke(cli, arguments)

    return call


def settings(result: Result) -> dict[str, tuple[str, str]]:
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["settings"]
    return {each["name"]: (each["value"], each["source"]) for each in found}


def test_config__no_file__settings_have_their_defaults(run: Run, tmp_path: Path) -> None:
    run("", "config", "explain")
    (tmp_path / "mlctl.toml").unlink()
    found = CliRunner().invoke(cli, ["config", "explain", "--json"])
    assert json.loads(found.stdout)["file"] is None
    assert settings(found)["MLCTL_DEADLINE_MS"] == ("30000.0", "default")


def test_config__variables_in_the_file__count_where_the_environment_has_none(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLCTL_THREADS", "3")
    text = "[environment]\nMLCTL_DEADLINE_MS = 5000\nMLCTL_THREADS = 2\n"
    found = settings(run(text, "config", "explain", "--json"))
    assert found["MLCTL_DEADLINE_MS"] == ("5000", "mlctl.toml")
    assert found["MLCTL_THREADS"] == ("3", "environment")


def test_config__secrets__are_not_shown(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLCTL_WEBHOOK_TOKEN", "swordfish")
    monkeypatch.setenv("MLCTL_SAMPLE_DIR", "s3://user:swordfish@host/folder")
    shown = run("", "config", "explain")
    assert "swordfish" not in shown.output
    assert "s3://***@host/folder" in shown.output


def test_config__options_in_the_file__are_defaults(run: Run) -> None:
    text = "[optimize]\nmax-accuracy-drop = 0.005\n[batch.run]\nunit-rows = 1000\n"
    document = json.loads(run(text, "config", "explain", "--json").stdout)
    assert document["options"] == [
        {"command": "optimize", "option": "--max-accuracy-drop", "value": 0.005},
        {"command": "batch run", "option": "--unit-rows", "value": 1000},
    ]
    assert "peak 347.2 rows/s / (77 rows/s" in run(CHOOSE, *CHOICE).output


def test_config__option_given_and_in_the_file__given_one_counts(run: Run) -> None:
    assert "(88 rows/s" in run(CHOOSE, *CHOICE, "--rows-per-second", "88").output


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[optimise]", "[optimise] is not a command of mlctl; did you mean optimize?"),
        ("[optimize]\nmax-acuracy-drop = 1", "did you mean max-accuracy-drop?"),
        ("[environment]\nPATH = 'x'", "[environment] has PATH"),
        ("environment = 1", "[environment] is not a table"),
        ("[batch]\nrun = 1", "[batch]: run is not a table"),
        ("[promote]\nmax-p99-ms = 'x'", "[promote]: max-p99-ms: 'x' is not a valid float"),
        ("[promote]\nmax-p99-ms = [1, 2]", "[promote]: max-p99-ms has one value, not several"),
        ("[cache.prune]\nunused = 'never'", "[prune]: unused: 'never' is not a duration"),
        ("a =", "cannot be read: Invalid value"),
    ],
)
def test_config__unusable_file__every_command_says_what_is_wrong(
    run: Run, text: str, reason: str
) -> None:
    result = run(text, "status")
    assert result.exit_code == click.UsageError.exit_code
    assert reason in result.stderr
    assert "mlctl.toml" in result.stderr
