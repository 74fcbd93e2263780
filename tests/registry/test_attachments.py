"""A Bento is kept on the run of its optimized version, and comes back the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlctl.bento.transfer.archive import list_files
from mlctl.bento.transfer.push import Destination, TransferTarget, pull, push
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.registry.catalog import PublishReport
from mlctl.registry.mlflow_catalog import MlflowCatalog
from mlctl.services.layout.bento_store import find_bento
from tests.support.bundles import make_bundle
from tests.support.small_bento import small_bento


@pytest.mark.slow
def test_attach__a_folder__comes_back_unchanged(
    catalog: MlflowCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = make_bundle(tmp_path / "bundle", name="digits", scale=7.0)
    published = catalog.publish(bundle, catalog.resolve("digits/1"), PublishReport("chosen"))
    monkeypatch.setenv("BENTOML_HOME", str(tmp_path / "store"))
    version = bundle.digest[:12]
    sent = small_bento(tmp_path / "store" / "bentos" / "digits" / version, bundle)
    target = TransferTarget(Destination.MLFLOW, published.uri)
    with pytest.raises(MlctlError, match="has: none") as caught:
        pull(target)
    assert caught.value.code is ErrorCode.BENTO_NOT_FOUND
    pushed = push(TransferTarget(Destination.MLFLOW), sent.tag, catalog, published)
    assert pushed.reference == f"mlflow:digits-optimized/{published.version}#{version}"
    files = list_files(sent)
    monkeypatch.setenv("BENTOML_HOME", str(tmp_path / "other"))
    for tag in (None, version):
        back = pull(TransferTarget(Destination.MLFLOW, published.uri, tag))
        assert list_files(back) == files
        assert find_bento("digits").path == back.path
    with pytest.raises(MlctlError, match=f"expected 'no'; .* has: {version}"):
        pull(TransferTarget(Destination.MLFLOW, published.uri, "no"))
    with pytest.raises(MlctlError) as caught:
        catalog.fetch_attached(published, "bentos/no", tmp_path)
    assert caught.value.code is ErrorCode.BENTO_NOT_FOUND
