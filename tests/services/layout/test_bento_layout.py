"""Where a Bento has its models: one in `model`, several in `models/NAME`, and what names them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.layout.bento_layout import (
    MODELS_FILE,
    BentoContents,
    combine_bundles,
    model_folder,
    read_bento_manifest,
    read_contents,
)
from mlctl.services.layout.scorable import scorable_in
from mlctl.services.online.server.service_bundle import find_bundles
from mlctl.services.online.settings import ServerSettings
from tests.support.bundles import make_bundle


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[VerifiedBundle]:
    folder = tmp_path_factory.mktemp("pair")
    return [make_bundle(folder / name, name=name, scale=2.0) for name in ("two", "one")]


@pytest.fixture
def source(pair: list[VerifiedBundle], tmp_path: Path) -> Path:
    """The sources of a Bento with both."""
    return lay_out(combine_bundles(pair, "shop"), tmp_path / "src")


def lay_out(packed: BentoContents, source: Path) -> Path:
    for folder, bundle in packed.folders():
        shutil.copytree(bundle.root, source / folder)
    for name, text in packed.digest_files().items():
        (source / name).write_bytes(text)
    return source


def test_combine_bundles__one_model__keeps_its_digest_and_name(
    pair: list[VerifiedBundle], tmp_path: Path
) -> None:
    packed = combine_bundles(pair[:1])
    assert (packed.name, packed.digest) == ("two", pair[0].digest)
    source = lay_out(packed, tmp_path)
    assert read_contents(source) == find_bundles(ServerSettings(bundle=None), source)
    assert model_folder(source) == source / "model"
    assert scorable_in(source, label=packed.digest).digest == packed.digest


def test_combine_bundles__several_models__have_a_common_digest(
    pair: list[VerifiedBundle], source: Path
) -> None:
    packed = read_contents(source)
    assert [bundle.manifest.name for bundle in packed.bundles] == ["two", "one"]
    assert (
        packed.digest
        == combine_bundles(pair, "shop").digest
        == find_bundles(ServerSettings(), source).digest
    )
    others = [combine_bundles(pair[::-1], "shop"), combine_bundles(pair, "store")]
    assert len({packed.digest, *(other.digest for other in others)}) == 3
    assert model_folder(source) == source / "models" / "two"
    assert scorable_in(source, "one", packed.digest).digest == pair[1].digest


def test_combine_bundles__invalid_names__are_rejected(pair: list[VerifiedBundle]) -> None:
    wrong: list[tuple[list[VerifiedBundle], str | None]] = [
        (pair, None), (pair, "one"), ([pair[0], pair[0]], "shop"), (pair, "No"), (pair[:1], "shop"),
    ]  # fmt: skip
    for bundles, name in wrong:
        with pytest.raises(MlctlError) as caught:
            combine_bundles(bundles, name)
        assert caught.value.code is ErrorCode.INVALID_INPUT


def swap(source: Path) -> None:
    models = source / "models"
    (models / "one").rename(models / "three")
    (models / "two").rename(models / "one")
    (models / "three").rename(models / "two")


def add(source: Path) -> None:
    shutil.copytree(source / "models" / "one", source / "models" / "more")


def spread(source: Path) -> None:
    path = source / MODELS_FILE
    path.write_bytes(path.read_bytes().replace(b",", b", "))


def rename_default(source: Path) -> None:
    path = source / MODELS_FILE
    path.write_bytes(path.read_bytes().replace(b'"default":"two"', b'"default":"six"'))


@pytest.mark.parametrize(
    ("harm", "code"),
    [
        (swap, ErrorCode.DIGEST_MISMATCH),
        (add, ErrorCode.FILE_UNLISTED),
        (spread, ErrorCode.MANIFEST_INVALID),
        (rename_default, ErrorCode.MANIFEST_INVALID),
        (lambda source: (source / MODELS_FILE).write_bytes(b"{}"), ErrorCode.MANIFEST_INVALID),
        (lambda source: shutil.rmtree(source / "models" / "one"), ErrorCode.MANIFEST_INVALID),
        (
            lambda source: (source / "models" / "one" / "model.onnx").write_bytes(b"x"),
            ErrorCode.FILE_ALTERED,
        ),
    ],
)
def test_find_bundles__changed_bento__is_rejected(
    source: Path, harm: Callable[[Path], object], code: ErrorCode
) -> None:
    harm(source)
    with pytest.raises(MlctlError) as caught:
        find_bundles(ServerSettings(bundle=None), source)
    assert caught.value.code is code


def test_scorable_in__label_of_another_bento__is_rejected(source: Path) -> None:
    with pytest.raises(MlctlError) as caught:
        scorable_in(source, label="0" * 64)
    assert caught.value.code is ErrorCode.DIGEST_MISMATCH
    with pytest.raises(MlctlError, match="it has two, one"):
        model_folder(source, "three")
    assert read_bento_manifest(source.parent) is None
