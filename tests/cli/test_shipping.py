"""`mlctl build --push` and `mlctl pull` of what was pushed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from mlctl.bento.transfer.archive import list_files
from mlctl.bento.transfer.push import push_oci
from mlctl.bundle.verify import VerifiedBundle
from mlctl.cli.main import cli
from tests.support.bundles import make_bundle
from tests.support.small_bento import small_bento


@pytest.fixture
def bundle(tmp_path: Path) -> VerifiedBundle:
    return make_bundle(tmp_path / "bundle")


def test_pull__from_where_it_was_pushed__gets_the_bento(
    bundle: VerifiedBundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENTOML_HOME", str(tmp_path / "store"))
    bento = small_bento(tmp_path / "bento", bundle)
    push_oci(tmp_path / "layout", bento)
    for reference in (f"oci:{tmp_path / 'layout'}", f"oci:{tmp_path / 'layout'}#{bento.tag}"):
        done = CliRunner().invoke(cli, ["pull", reference, "--json"])
        assert done.exit_code == 0, done.output
        found = json.loads(done.output)
        assert (found["tag"], found["digest"]) == (bento.tag, bundle.digest)
        assert found["archive_digest"] == list_files(bento).archive_digest
        assert Path(found["path"]).is_relative_to(tmp_path / "store")
    (Path(found["path"]) / "README.md").write_text("another")
    refused = CliRunner().invoke(cli, ["pull", reference])
    assert (refused.exit_code, "--force replaces it" in refused.output) == (2, True)
    forced = CliRunner().invoke(cli, ["pull", reference, "--force"])
    assert forced.exit_code == 0, forced.output
    missing = CliRunner().invoke(cli, ["pull", f"oci:{tmp_path / 'layout'}#tiny:no"])
    assert missing.exit_code != 0
    assert f"the layout has: {bento.tag.replace(':', '-')}" in missing.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["pull", "digits"], "Missing option '--out'"),
        (["pull", "oci:here", "--out", "there"], "--out is for a bundle"),
        (["pull", "digits", "--out", "there", "--force"], "--force is for a BENTO"),
        (["pull", "oci:"], "names no Bento"),
        (["build", "digits", "--push", "oci:"], "is no destination"),
        (["build", "digits", "--push", "registry/digits:1"], "Write it as oci:FOLDER or mlflow"),
        (["build"], "Missing argument"),
        (["build", "a+b", "c"], "'a+b c' is not one pipeline"),
        (["build", "a+"], "'a+' is not one pipeline"),
        (
            ["build", "a", "b", "--connect", "b.x=a.y"],
            "--connect connects the stages of a pipeline",
        ),
        (["build", "a", "b", "--version", "1"], "but 2 are given"),
        (["build", "digits", "--runtime", "tpu"], "'tpu' is not one of"),
    ],
)
def test_push__contradictory_options__are_rejected(arguments: list[str], words: str) -> None:
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code != 0
    assert words in done.output
