"""The interface of a Bento, read from its folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mlctl.bento.interface import interface_of
from mlctl.bundle.interface import PREDICT
from mlctl.bundle.verify import VerifiedBundle
from mlctl.services.layout.bento_layout import BentoContents, combine_bundles
from tests.support.bundles import make_bundle


@pytest.fixture
def pair(tmp_path: Path) -> list[VerifiedBundle]:
    return [
        make_bundle(tmp_path / name, name=name, features=size)
        for name, size in (("two", 2), ("one", 2))
    ]


def lay_out(packed: BentoContents, source: Path) -> Path:
    for folder, bundle in packed.folders():
        shutil.copytree(bundle.root, source / folder)
    for name, text in packed.digest_files().items():
        (source / name).write_bytes(text)
    return source


def test_interface_of__one_model__has_its_name(pair: list[VerifiedBundle], tmp_path: Path) -> None:
    found = interface_of(lay_out(combine_bundles(pair[:1]), tmp_path / "src"))
    assert found == {"two": pair[0].manifest.signature}


def test_interface_of__several_models__have_predict_for_the_first(
    pair: list[VerifiedBundle], tmp_path: Path
) -> None:
    found = interface_of(lay_out(combine_bundles(pair, "shop"), tmp_path / "src"))
    two, one = (bundle.manifest.signature for bundle in pair)
    assert found == {"two": two, "one": one, PREDICT: two}


def test_interface_of__pipeline__has_the_bentos_name(
    pair: list[VerifiedBundle], tmp_path: Path
) -> None:
    packed = combine_bundles(pair, "whole", ["one.x=two.y"])
    found = interface_of(lay_out(packed, tmp_path / "src"))
    assert set(found) == {"two", "one", "whole", PREDICT}
    assert found["whole"] == found[PREDICT]
    sides = (found["whole"].inputs, found["whole"].outputs)
    assert sides == (pair[0].manifest.signature.inputs, pair[1].manifest.signature.outputs)
