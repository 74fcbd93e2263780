"""The model to measure: TAG/NAME and URL/NAME, the first model, or a pipeline."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.loadtest.naming import folder_of, resolve_model, split_target
from mlctl.services.layout.bento_layout import combine_bundles
from tests.support.bundles import make_bundle


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("tiny", ("tiny", None)),
        ("shop:latest/two", ("shop:latest", "two")),
        ("http://h:3000", ("http://h:3000", None)),
        ("https://h:3000/", ("https://h:3000", None)),
        ("http://h:3000/two", ("http://h:3000", "two")),
        ("file:///x", ("file:///x", None)),
    ],
)
def test_split_target__each_form__separates_the_model(
    target: str, found: tuple[str, str | None]
) -> None:
    assert split_target(target) == found


def lay_out(source: Path, name: str | None, *names: str, maps: Sequence[str] | None = None) -> Path:
    packed = combine_bundles(
        [make_bundle(source.parent / each, name=each, features=2) for each in names], name, maps
    )
    for folder, bundle in packed.folders():
        shutil.copytree(bundle.root, source / folder)
    for note, text in packed.digest_files().items():
        (source / note).write_bytes(text)
    return source


def test_resolve_model__one_model__needs_no_name(tmp_path: Path) -> None:
    source = lay_out(tmp_path / "src", None, "one")
    assert resolve_model(source, None) == resolve_model(source, "one") == "one"
    assert folder_of(source, "one") == source / "model"


def test_resolve_model__several_models__default_is_the_first(tmp_path: Path) -> None:
    source = lay_out(tmp_path / "src", "shop", "two", "one")
    assert resolve_model(source, None) == "two"
    assert folder_of(source, resolve_model(source, "one")) == source / "models" / "one"
    with pytest.raises(MlctlError, match="no model 'three'; it has two, one") as caught:
        resolve_model(source, "three")
    assert caught.value.code is ErrorCode.MODEL_NOT_FOUND


def test_resolve_model__pipeline__is_the_default(tmp_path: Path) -> None:
    source = lay_out(tmp_path / "src", "whole", "two", "one", maps=["one.x=two.y"])
    assert resolve_model(source, None) == "whole"
    assert folder_of(source, "whole") == source / "models" / "two"
    assert resolve_model(source, "one") == "one"


def test_resolve_model__bento_of_another_tool__keeps_the_name(tmp_path: Path) -> None:
    assert resolve_model(tmp_path, None) is None
    assert resolve_model(tmp_path, "theirs") == "theirs"
