from __future__ import annotations

from pathlib import Path

import pytest

from mlctl.core.errors import MlctlError
from mlctl.registry.catalog import Catalog, PublishReport
from tests.support.bundles import make_bundle
from tests.support.memory_catalog import MemoryCatalog
from tests.support.sources import onnx_source


def test_memory_catalog__each_method__behaves_like_the_registry(tmp_path: Path) -> None:
    twin = MemoryCatalog(
        [onnx_source(tmp_path / "1"), onnx_source(tmp_path / "10", version="10", pickled=True)]
    )
    catalog: Catalog = twin
    assert catalog.resolve("tiny/1").version == "1"
    assert catalog.resolve("tiny", allow_pickle=True).version == "10"
    with pytest.raises(MlctlError, match="stored as a pickle"):
        catalog.resolve("tiny/10")
    with pytest.raises(MlctlError, match="did you mean 'tiny'"):
        catalog.resolve("tin")

    bundle = make_bundle(tmp_path / "bundle")
    published = catalog.publish(bundle, catalog.resolve("tiny/1"), PublishReport("chosen"))
    again = catalog.publish(bundle, catalog.resolve("tiny/1"), PublishReport("chosen"))
    assert published == again == twin.find_by_digest(bundle.digest)
    assert twin.write_champion(bundle.digest) == published
    assert catalog.resolve("tiny@champion").version == "1"
    with pytest.raises(MlctlError, match="has the digest"):
        twin.find_by_digest("0" * 64)
