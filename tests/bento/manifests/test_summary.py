"""The summary of a Bento: a measurement of its pipeline counts for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlctl.bento.manifests.summary import summary_of
from mlctl.core.errors import MlctlError
from mlctl.services.layout.bento_layout import combine_bundles
from mlctl.services.layout.bento_store import BentoInfo
from tests.bento.manifests.test_resources import run, written
from tests.services.layout.test_bento_layout import lay_out
from tests.support.bundles import make_bundle


def test_summary__pipeline__accepts_measurements_of_it_and_its_models(tmp_path: Path) -> None:
    bundles = [make_bundle(tmp_path / name, name=name) for name in ("double", "triple")]
    packed = combine_bundles(bundles, "both", ["triple.x=double.y"])
    lay_out(packed, tmp_path / "bento" / "src")
    (tmp_path / "bento" / "bento.yaml").write_text("entry_service: both\n")
    summary = summary_of(BentoInfo("both:1", tmp_path / "bento", {}))
    assert (summary.name, summary.model.service) == ("both", "both")
    for version in (packed.digest, bundles[0].digest, bundles[1].digest):
        bench = written(tmp_path / "b.json", [run(1, 100, 0.5, 100 << 20)], version=version)
        assert summary.resources(bench, 1).measured
    bench = written(tmp_path / "b.json", [run(1, 100, 0.5, 100 << 20)])
    with pytest.raises(MlctlError, match="it measured dddddddddddd"):
        summary.resources(bench, 1)
