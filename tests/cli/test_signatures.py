"""`mlctl sign` and `mlctl verify`, and the commands that start nothing unsigned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from mlctl.bundle.manifest import GOLDEN_NAME
from mlctl.bundle.verify import VerifiedBundle
from mlctl.cli.main import cli
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.rollout.client.revisions import find_revision
from mlctl.services.layout.bento_store import SERVER_VERSION
from tests.support.bundles import make_bundle
from tests.support.keys import make_pair


@pytest.fixture
def bundle(tmp_path: Path) -> VerifiedBundle:
    return make_bundle(tmp_path / "bundle")


def test_sign__folder__verifies_until_it_changes(bundle: VerifiedBundle, tmp_path: Path) -> None:
    private, public = make_pair(tmp_path / "keys")
    run, folder = CliRunner().invoke, str(bundle.root)
    asked = ["verify", folder, "--public-key", str(public), "--json"]
    unsigned = run(cli, asked)
    assert unsigned.exit_code == 4
    assert json.loads(unsigned.stdout)["error"]["code"] == "signature_invalid"
    assert run(cli, ["sign", folder, "--private-key", str(private)]).exit_code == 0
    proved = run(cli, asked)
    assert proved.exit_code == 0, proved.output
    assert json.loads(proved.stdout) == [{"model": "tiny", "digest": bundle.digest, "signed": True}]
    (bundle.root / GOLDEN_NAME).write_bytes(b"")
    altered = run(cli, ["verify", folder, "--json"])
    assert altered.exit_code == 4
    assert json.loads(altered.stdout)["error"]["code"] == "file_altered"


def test_sign__key_with_password__reads_it_from_the_environment(
    bundle: VerifiedBundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private, public = make_pair(tmp_path / "keys", "hunter2")
    run, folder = CliRunner().invoke, str(bundle.root)
    refused = run(cli, ["sign", folder, "--private-key", str(private)])
    assert refused.exit_code == 2
    monkeypatch.setenv("MLCTL_KEY_PASSWORD", "hunter2")
    done = run(cli, ["sign", folder, "--private-key", str(private)])
    assert done.exit_code == 0
    assert "hunter2" not in done.output
    assert run(cli, ["verify", folder, "--public-key", str(public)]).exit_code == 0


def test_require_signature__unsigned_bento__is_rejected(
    bundle: VerifiedBundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up and promote ask this function; the Bento is laid out by hand as BentoML does it."""
    private, public = make_pair(tmp_path / "keys")
    place = tmp_path / "store" / "bentos" / "tiny" / "1"
    monkeypatch.setenv("BENTOML_HOME", str(tmp_path / "store"))
    (place / "src").mkdir(parents=True)
    bundle.root.rename(place / "src" / "model")
    (place / "src" / "model.digest").write_text(bundle.digest)
    labels = {"digest": bundle.digest, "model": "tiny", "version": "1", "source": "models:/t/1"}
    labels["server"] = SERVER_VERSION
    document = {"labels": {f"mlctl.{name}": text for name, text in labels.items()}}
    (place / "bento.yaml").write_text(json.dumps(document))
    assert find_revision("tiny:1").digest == bundle.digest
    monkeypatch.setenv("MLCTL_REQUIRE_SIGNATURE", str(public))
    with pytest.raises(MlctlError) as caught:
        find_revision("tiny:1")
    assert caught.value.code is ErrorCode.SIGNATURE_INVALID
    assert CliRunner().invoke(cli, ["sign", "tiny:1", "--private-key", str(private)]).exit_code == 0
    assert find_revision("tiny:1").digest == bundle.digest
