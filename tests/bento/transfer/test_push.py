"""Bentos pushed to an OCI image layout, and pulled unaltered or not at all."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlctl.bento.transfer import push
from mlctl.bento.transfer.archive import list_files, parse_listing
from mlctl.bento.transfer.push import Destination, TransferTarget, parse_source, parse_target
from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.layout.bento_store import BentoInfo, find_bento
from tests.support.small_bento import small_bento


@pytest.fixture
def elsewhere(
    shared_bundle: VerifiedBundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> BentoInfo:
    """A Bento in another store than the current one."""
    monkeypatch.setenv("BENTOML_HOME", str(tmp_path / "store"))
    return small_bento(tmp_path / "there", shared_bundle)


def code_of(work: Callable[[], object]) -> ErrorCode:
    with pytest.raises(MlctlError) as caught:
        work()
    return caught.value.code


def blob(layout: Path, digest: str) -> Path:
    return layout / "blobs" / "sha256" / digest.removeprefix("sha256:")


def read(layout: Path, digest: str) -> Any:
    return json.loads(blob(layout, digest).read_bytes())


def test_parse_target_and_source__every_form__is_parsed() -> None:
    assert parse_target("mlflow") == TransferTarget(Destination.MLFLOW)
    assert parse_target("oci:a:b") == TransferTarget(Destination.OCI, "a:b")
    assert parse_source("oci:a#tiny:1") == TransferTarget(Destination.OCI, "a", "tiny:1")
    assert parse_source("mlflow:m/2") == TransferTarget(Destination.MLFLOW, "m/2")
    assert parse_source("digits") is parse_source("models:/digits/1") is None
    assert code_of(lambda: parse_target("oci:")) is ErrorCode.INVALID_INPUT
    assert code_of(lambda: parse_source("mlflow:#1")) is ErrorCode.INVALID_INPUT


def test_pull__the_same_files_in_the_store__leaves_them(
    elsewhere: BentoInfo, tmp_path: Path
) -> None:
    layout = tmp_path / "layout"
    push.push_oci(layout, elsewhere)
    back = push.pull_oci(layout, None)
    assert back.path.is_relative_to(tmp_path / "store")
    assert find_bento(back.tag.partition(":")[0]) == back
    made = back.path.stat().st_ino
    assert push.pull_oci(layout, None) == back
    assert back.path.stat().st_ino == made


def test_pull__other_files_of_the_same_tag__needs_force(
    elsewhere: BentoInfo, tmp_path: Path
) -> None:
    layout = tmp_path / "layout"
    push.push_oci(layout, elsewhere)
    path = push.pull_oci(layout, None).path / "src" / "services" / "scorer.py"
    whole = path.read_bytes()
    path.write_bytes(whole + b"#")
    with pytest.raises(MlctlError, match=r"with other files: .*scorer\.py") as caught:
        push.pull_oci(layout, None)
    assert "--force" in caught.value.hint
    assert path.read_bytes() == whole + b"#"
    push.pull_oci(layout, None, force=True)
    assert path.read_bytes() == whole


def test_pull__larger_than_the_disk__writes_nothing(elsewhere: BentoInfo, tmp_path: Path) -> None:
    listing = list_files(elsewhere)
    first, *others = listing.files
    large = listing.model_copy(
        update={"files": (first.model_copy(update={"size": 1 << 60}), *others)}
    )
    layout = tmp_path / "layout"
    _swap_config(layout, push.push_oci(layout, elsewhere).manifest_digest, large.canonical())
    assert code_of(lambda: push.pull_oci(layout, None)) is ErrorCode.DISK_FULL
    assert not (tmp_path / "store" / "bentos").exists()


def test_pull__files_of_another_bundle__are_rejected(elsewhere: BentoInfo, tmp_path: Path) -> None:
    """The list and the files agree, and the label names the original bundle."""
    layout = tmp_path / "layout"
    digest, listing = push.push_oci(layout, elsewhere).manifest_digest, list_files(elsewhere)
    model = elsewhere.path / "src" / "model" / "model.onnx"
    model.write_bytes(model.read_bytes() + b"#")
    size, sha256 = model.stat().st_size, hashlib.sha256(model.read_bytes()).hexdigest()
    files = tuple(
        entry.model_copy(update={"size": size, "sha256": sha256})
        if entry.path == "src/model/model.onnx"
        else entry
        for entry in listing.files
    )
    _swap_config(layout, digest, listing.model_copy(update={"files": files}).canonical())
    digest = json.loads((layout / "index.json").read_text())["manifests"][0]["digest"]
    layer = blob(layout, read(layout, digest)["layers"][0]["digest"])
    content = _replaced(gzip.decompress(layer.read_bytes()), model, "src/model/model.onnx")
    _swap_layer(layout, digest, gzip.compress(content, mtime=0))
    assert code_of(lambda: push.pull_oci(layout, None)) is ErrorCode.FILE_ALTERED
    assert not (tmp_path / "store" / "bentos").exists()


def _replaced(content: bytes, file: Path, name: str) -> bytes:
    """Return the archive with the member `name` from `file`."""
    made = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(content)) as source,
        tarfile.open(fileobj=made, mode="w") as target,
    ):
        for member in source:
            if member.name == name:
                member.size = file.stat().st_size
                target.addfile(member, io.BytesIO(file.read_bytes()))
            else:
                target.addfile(member, source.extractfile(member))
    return made.getvalue()


def test_parse_listing__path_outside__is_rejected(elsewhere: BentoInfo) -> None:
    content = list_files(elsewhere).canonical().replace(b'"README.md"', b'"../README.md"')
    assert code_of(lambda: parse_listing(content)) is ErrorCode.MANIFEST_INVALID


def test_push_oci__twice__gives_one_valid_layout_with_the_same_digest(
    elsewhere: BentoInfo, tmp_path: Path
) -> None:
    layout = tmp_path / "layout"
    pushed, sent = push.push_oci(layout, elsewhere), list_files(elsewhere)
    digest = pushed.manifest_digest
    assert push.push_oci(layout, elsewhere) == pushed  # the same bytes, the same digest
    # The OCI image specification 1.1 requires these of a layout with an artifact.
    assert json.loads((layout / "oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}
    index = json.loads((layout / "index.json").read_text())
    assert (index["schemaVersion"], index["mediaType"]) == (
        2,
        "application/vnd.oci.image.index.v1+json",
    )
    (entry,) = index["manifests"]
    assert entry["digest"] == digest
    assert entry["annotations"] == {
        "org.opencontainers.image.ref.name": elsewhere.tag.replace(":", "-")
    }
    manifest = read(layout, digest)
    assert manifest["schemaVersion"] == 2
    assert manifest["mediaType"] == "application/vnd.oci.image.manifest.v1+json"
    assert manifest["artifactType"] == entry["artifactType"] == "application/vnd.mlctl.bento.v1"
    for one in (entry, manifest["config"], *manifest["layers"]):
        content = blob(layout, one["digest"]).read_bytes()
        assert one["size"] == len(content)
        assert one["digest"] == f"sha256:{hashlib.sha256(content).hexdigest()}"
    annotations = manifest["annotations"]
    assert annotations["mlctl.digest"] == elsewhere.labels["mlctl.digest"]
    assert annotations["mlctl.content"] == elsewhere.labels["mlctl.content"]
    assert annotations["mlctl.archive"] == manifest["config"]["digest"].removeprefix("sha256:")
    back = push.pull_oci(layout, None)
    assert list_files(back) == sent
    assert push.pull_oci(layout, elsewhere.tag).tag == back.tag


def test_pull_oci__changed_layout__is_rejected(elsewhere: BentoInfo, tmp_path: Path) -> None:
    layout = tmp_path / "layout"
    digest = push.push_oci(layout, elsewhere).manifest_digest
    assert code_of(lambda: push.pull_oci(layout, "tiny:other")) is ErrorCode.BENTO_NOT_FOUND
    assert code_of(lambda: push.pull_oci(tmp_path, None)) is ErrorCode.BENTO_NOT_FOUND
    (tmp_path / "busy").mkdir()
    (tmp_path / "busy" / "file").touch()
    busy = code_of(lambda: push.push_oci(tmp_path / "busy", elsewhere))
    assert busy is ErrorCode.INVALID_INPUT
    manifest = read(layout, digest)
    for one in (digest, manifest["config"]["digest"], manifest["layers"][0]["digest"]):
        path = blob(layout, one)
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        assert code_of(lambda: push.pull_oci(layout, None)) is ErrorCode.FILE_ALTERED
        path.write_bytes(content)
    assert push.pull_oci(layout, None).tag == elsewhere.tag


@pytest.mark.parametrize("kind", ["outside", "link", "twice", "short", "long", "torn"])
def test_pull_oci__hostile_layer__is_rejected(
    elsewhere: BentoInfo, tmp_path: Path, kind: str
) -> None:
    layout = tmp_path / "layout"
    digest, listing = push.push_oci(layout, elsewhere).manifest_digest, list_files(elsewhere)
    layer = blob(layout, read(layout, digest)["layers"][0]["digest"])
    _swap_layer(layout, digest, _harmed(gzip.decompress(layer.read_bytes()), kind))
    with pytest.raises(MlctlError) as caught:
        push.pull_oci(layout, None)
    assert caught.value.code in {
        ErrorCode.FILE_ALTERED, ErrorCode.FILE_MISSING, ErrorCode.FILE_UNLISTED,
    }  # fmt: skip
    assert not (tmp_path / "README.md").exists()
    assert parse_listing(listing.canonical()) == listing


def _harmed(content: bytes, kind: str) -> bytes:
    made = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(content)) as source,
        tarfile.open(fileobj=made, mode="w") as target,
    ):
        for member in source:
            file = source.extractfile(member)
            assert file is not None
            data = file.read()
            if member.name == "README.md":
                if kind == "short":
                    continue
                if kind == "long":
                    data += b"#"
                    member.size += 1
                if kind == "twice":
                    target.addfile(member, io.BytesIO(data))
                if kind == "outside":
                    member.name = "../README.md"
                if kind == "sparse":  # the size that it says, of which the archive has nothing
                    size = {"GNU.sparse.size": str(member.size), "GNU.sparse.map": "0,0"}
                    member.pax_headers, member.size, data = size, 0, b""
                if kind == "link":
                    member.type, member.linkname, member.size = tarfile.SYMTYPE, "/etc", 0
            target.addfile(member, io.BytesIO(data))
    packed = gzip.compress(made.getvalue(), mtime=0)
    return packed[:-100] if kind == "torn" else packed


def _swap_layer(layout: Path, digest: str, content: bytes) -> None:
    """Replace the layer of the layout and update every digest above it."""
    document = read(layout, digest)
    document["layers"][0] |= _put(layout, content)
    _swap_manifest(layout, document)


def _swap_config(layout: Path, digest: str, content: bytes) -> None:
    """Replace the listing of the layout and update every digest above it."""
    document = read(layout, digest)
    document["config"] |= _put(layout, content)
    _swap_manifest(layout, document)


def _swap_manifest(layout: Path, document: Any) -> None:
    index = json.loads((layout / "index.json").read_text())
    index["manifests"][0] |= _put(layout, json.dumps(document).encode())
    (layout / "index.json").write_text(json.dumps(index))


def _put(layout: Path, content: bytes) -> dict[str, Any]:
    digest = hashlib.sha256(content).hexdigest()
    blob(layout, digest).write_bytes(content)
    return {"digest": f"sha256:{digest}", "size": len(content)}


def test_parse_listing__path_that_is_file_and_folder__is_rejected(elsewhere: BentoInfo) -> None:
    listing = list_files(elsewhere)
    first = listing.files[0]
    below = first.model_copy(update={"path": f"{first.path}/below"})
    files = tuple(sorted((*listing.files, below), key=lambda entry: entry.path))
    wrong = listing.model_copy(update={"files": files})
    assert code_of(lambda: parse_listing(wrong.canonical())) is ErrorCode.MANIFEST_INVALID


def test_parse_listing__version_latest__is_rejected(elsewhere: BentoInfo) -> None:
    wrong = list_files(elsewhere).model_copy(update={"version": "latest"})
    assert code_of(lambda: parse_listing(wrong.canonical())) is ErrorCode.MANIFEST_INVALID


def test_pull_oci__sparse_file__is_rejected(elsewhere: BentoInfo, tmp_path: Path) -> None:
    layout = tmp_path / "layout"
    digest = push.push_oci(layout, elsewhere).manifest_digest
    layer = blob(layout, read(layout, digest)["layers"][0]["digest"])
    _swap_layer(layout, digest, _harmed(gzip.decompress(layer.read_bytes()), "sparse"))
    assert code_of(lambda: push.pull_oci(layout, None)) is ErrorCode.FILE_UNLISTED


def test_pull_oci__manifest_without_layers__is_rejected(
    elsewhere: BentoInfo, tmp_path: Path
) -> None:
    layout = tmp_path / "layout"
    digest = push.push_oci(layout, elsewhere).manifest_digest
    _swap_manifest(layout, {**read(layout, digest), "layers": 1})
    assert code_of(lambda: push.pull_oci(layout, None)) is ErrorCode.MANIFEST_INVALID
