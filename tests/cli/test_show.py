"""`mlctl show`: what each form of its argument names."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.rollout.client.provenance import ProvenanceSources, chain, find_digest
from mlctl.services.layout.bento_store import DIGEST_LABEL
from tests.support.bundles import make_bundle
from tests.support.command_line import Mlctl

NOTHING = ProvenanceSources((), (), (), ())


def write_bento(home: Path, tag: str, labels: str) -> None:
    name, version = tag.split(":")
    folder = home / "bentoml" / "bentos" / name / version
    folder.mkdir(parents=True)
    (folder / "bento.yaml").write_text(
        f"name: {name}\nversion: {version}\nlabels: {labels}\n", encoding="utf-8"
    )


def test_show__folder_of_a_bundle__reads_its_manifest_and_evidence(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "model", name="double")
    digest, facts = find_digest(str(tmp_path / "model"), NOTHING)
    assert digest == bundle.digest
    document = chain(digest, NOTHING, facts)
    assert [each["name"] for each in document["signature"]["inputs"]] == ["x"]
    assert [each["recipe"] for each in document["variants"]] == ["fp32"]
    assert (document["source"]["uri"], document["serves"]) == ("models:/double/1", [])


def test_show__altered_bundle__is_an_error(tmp_path: Path) -> None:
    make_bundle(tmp_path / "model", name="double")
    (tmp_path / "model" / "evidence.json").write_text("{}")
    with pytest.raises(MlctlError) as failed:
        find_digest(str(tmp_path / "model"), NOTHING)
    assert failed.value.code is ErrorCode.FILE_ALTERED


def test_show__path_without_a_bundle__names_the_missing_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MlctlError, match="manifest") as failed:
        find_digest("./nothing", NOTHING)
    assert failed.value.code is ErrorCode.MANIFEST_INVALID


def test_show__bento__is_found_by_its_label(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLCTL_HOME", str(tmp_path))
    write_bento(tmp_path, "double:aaaa", f'{{{DIGEST_LABEL}: "{"a" * 64}"}}')
    write_bento(tmp_path, "other:bbbb", "{}")
    assert find_digest("double:aaaa", NOTHING) == ("a" * 64, None)
    with pytest.raises(MlctlError, match="not built by mlctl"):
        find_digest("other:bbbb", NOTHING)


@pytest.mark.slow
def test_show__model_that_is_not_registered__lists_them_and_names_the_variable(
    tmp_path: Path,
) -> None:
    done = Mlctl(tmp_path).run("show", "nothing")
    assert done.returncode == 3
    assert "registered models: none" in done.stderr
    # The registry is the file that lies in this folder: no other one to point to.
    assert "If it was logged to another registry, set MLFLOW_TRACKING_URI" in done.stderr
