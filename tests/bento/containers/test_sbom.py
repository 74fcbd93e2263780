"""The bill of materials, validated with CycloneDX's schema."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mlctl.bento.containers.lock import Lock, Package, Platform
from mlctl.bento.containers.resolve import complete
from mlctl.bento.containers.sbom import sbom_of
from mlctl.bundle.manifest import MANIFEST_NAME
from mlctl.bundle.verify import VerifiedBundle
from mlctl.services.layout.bento_layout import combine_bundles
from mlctl.services.layout.bento_store import BentoInfo
from tests.support.bundles import make_bundle

PACKAGES = (
    Package("click", "8.5.1", ("1" * 64, "2" * 64), (), "BSD-3-Clause"),
    Package("odd", "1.0", ("3" * 64,), ("click",), 'My "own" licence'),
    Package("plain", "0.1", ("4" * 64,), ("click", "not-there")),
)


@pytest.fixture
def bento(tmp_path: Path) -> BentoInfo:
    folder = tmp_path / "bento"
    folder.mkdir()
    (folder / "bento.yaml").write_text("creation_time: '2026-11-21T20:25:58.191199+00:00'\n")
    return BentoInfo("shop:1", folder, {"mlctl.content": "c" * 64})


def test_sbom__written_twice__is_valid_and_the_same(
    bento: BentoInfo, bundle: VerifiedBundle, tmp_path: Path
) -> None:
    packed = combine_bundles([bundle, make_bundle(tmp_path / "other", name="other")], "shop")
    made = [sbom_of(bento, packed, Lock(PACKAGES), Platform.AMD64) for _ in range(2)]
    assert made[0] == made[1]
    # Its grammar of URIs takes a second to load.
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    problem = JsonStrictValidator(SchemaVersion.V1_6).validate_str(made[0].decode())
    assert problem is None, problem
    assert made[0] != sbom_of(bento, packed, Lock(PACKAGES[:2]), Platform.AMD64)


def test_sbom__models_files_and_packages__are_listed_with_their_dependencies(
    bento: BentoInfo, bundle: VerifiedBundle
) -> None:
    packed = combine_bundles([bundle])
    document = json.loads(sbom_of(bento, packed, Lock(PACKAGES), Platform.AMD64))
    by_ref = {each["bom-ref"]: each for each in document["components"]}
    model = by_ref["model/tiny"]
    assert model["type"] == "machine-learning-model"
    assert model["hashes"] == [{"alg": "SHA-256", "content": bundle.digest}]
    files = {each["name"]: each["hashes"][0]["content"] for each in model["components"]}
    listed = {entry.path: entry.sha256 for entry in bundle.manifest.files}
    assert files == {**listed, MANIFEST_NAME: bundle.digest}
    properties = {each["name"]: each["value"] for each in model["properties"]}
    assert properties["mlctl:source"] == "models:/tiny/1"
    assert by_ref["pypi/click"]["purl"] == "pkg:pypi/click@8.5.1"
    assert {each["content"] for each in by_ref["pypi/click"]["hashes"]} == {"1" * 64, "2" * 64}
    assert by_ref["pypi/click"]["licenses"] == [{"license": {"id": "BSD-3-Clause"}}]
    assert "licenses" not in by_ref["pypi/plain"]
    needs = {each["ref"]: each.get("dependsOn", []) for each in document["dependencies"]}
    assert needs["bento"] == ["model/tiny", "pypi/odd", "pypi/plain"]
    assert needs["pypi/plain"] == ["pypi/click"]
    assert document["metadata"]["timestamp"].startswith("2026-11-21T20:25:58")


def test_complete__installed_package__gets_its_licence() -> None:
    from importlib.metadata import version

    read = Lock(
        (Package("click", version("click"), ("1" * 64,)), Package("gone", "9", ("2" * 64,)))
    )
    click, gone = complete(read, ["click", "gone"], Platform.AMD64).packages
    assert click.licence == "BSD-3-Clause"
    assert gone == read.packages[1]
