"""`mlctl client` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from mlctl.bento.clients.languages import GENERATORS
from mlctl.cli.commands.client import LANGUAGES
from mlctl.cli.main import cli
from tests.support.bundles import make_bundle


def test_client__each_language__is_a_choice() -> None:
    assert set(LANGUAGES) == set(GENERATORS)


@pytest.mark.parametrize("language", LANGUAGES)
def test_client__written__lists_its_files(
    language: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bundle = make_bundle(tmp_path / "tiny")
    arguments = ["client", "tiny", "--lang", language, "--json"]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["model"], told["digest"], told["path"]) == (
        "tiny", bundle.digest, f"tiny-{language}",
    )  # fmt: skip
    found = {str(each.relative_to(told["path"])) for each in Path(told["path"]).rglob("*.*")}
    assert found == set(told["files"])
    again = CliRunner().invoke(cli, arguments)
    assert again.exit_code == 2
    assert "--force" in json.loads(again.stdout)["error"]["hint"]
    assert CliRunner().invoke(cli, [*arguments, "--force"]).exit_code == 0


def test_client__missing_model__is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENTOML_HOME", str(tmp_path))
    done = CliRunner().invoke(cli, ["client", "nothing", "--lang", "python"])
    assert done.exit_code == 3
    assert "no Bento" in done.output
