"""What manifests know of a Bento: a pipeline's measurement is one of that Bento."""

from __future__ import annotations

from pathlib import Path

import pytest

from bento.manifests.bento import subject_of
from bundle.errors import MlctlError
from services.runtime.bento_layout import combine_bundles
from services.runtime.bento_store import BentoInfo
from tests.bento.manifests.test_resources import run, written
from tests.services.runtime.test_bento_layout import lay_out
from tests.support.bundles import make_bundle


def test_a_bento_is_measured_as_its_models_and_a_pipeline_as_a_whole(tmp_path: Path) -> None:
    bundles = [make_bundle(tmp_path / name, name=name) for name in ("double", "triple")]
    packed = combine_bundles(bundles, "both", ["triple.x=double.y"])
    lay_out(packed, tmp_path / "bento" / "src")
    (tmp_path / "bento" / "bento.yaml").write_text("entry_service: both\n")
    subject = subject_of(BentoInfo("both:1", tmp_path / "bento", {}))
    assert (subject.name, subject.model.service) == ("both", "both")
    for version in (packed.digest, bundles[0].digest, bundles[1].digest):
        bench = written(tmp_path / "b.json", [run(1, 100, 0.5, 100 << 20)], version=version)
        assert subject.resources(bench, 1).measured
    bench = written(tmp_path / "b.json", [run(1, 100, 0.5, 100 << 20)])
    with pytest.raises(MlctlError, match="it is of dddddddddddd"):
        subject.resources(bench, 1)
