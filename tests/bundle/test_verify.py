import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mlctl.bundle.verify import VerifiedBundle, read_manifest, seal, verify
from mlctl.core.errors import ErrorCode, MlctlError
from tests.support.manifests import small_manifest


@pytest.fixture
def sealed(tmp_path: Path) -> VerifiedBundle:
    root = tmp_path / "bundle"
    (root / "extra").mkdir(parents=True)
    (root / "model.onnx").write_bytes(b"model bytes")
    (root / "extra" / "notes.txt").write_bytes(b"notes")
    return seal(root, small_manifest())


def test_verify__sealed_bundle__passes(sealed: VerifiedBundle) -> None:
    again = verify(sealed.root, expected_digest=sealed.digest)
    assert again == sealed
    assert [entry.path for entry in again.manifest.files] == ["extra/notes.txt", "model.onnx"]
    assert again.path("model.onnx").read_bytes() == b"model bytes"


def test_seal__again__gives_the_same_digest(sealed: VerifiedBundle) -> None:
    assert seal(sealed.root, sealed.manifest).digest == sealed.digest


def test_verify__moved_bundle__keeps_its_digest(sealed: VerifiedBundle, tmp_path: Path) -> None:
    moved = shutil.copytree(sealed.root, tmp_path / "elsewhere")
    assert verify(moved).digest == sealed.digest


def flip_a_byte(root: Path) -> None:
    content = bytearray((root / "model.onnx").read_bytes())
    content[3] ^= 1
    (root / "model.onnx").write_bytes(content)


def append_a_byte(root: Path) -> None:
    with (root / "model.onnx").open("ab") as file:
        file.write(b"!")


def remove_a_file(root: Path) -> None:
    (root / "model.onnx").unlink()


def add_a_file(root: Path) -> None:
    (root / "extra" / "stranger.py").write_bytes(b"")


def replace_by_a_link(root: Path) -> None:
    shutil.move(root / "model.onnx", root.parent / "model.onnx")
    (root / "model.onnx").symlink_to(root.parent / "model.onnx")


def replace_by_a_hard_link(root: Path) -> None:
    os.link(root / "model.onnx", root.parent / "other-name")


def link_a_directory(root: Path) -> None:
    shutil.move(root / "extra", root.parent / "extra")
    (root / "extra").symlink_to(root.parent / "extra")


def replace_by_a_directory(root: Path) -> None:
    (root / "model.onnx").unlink()
    (root / "model.onnx").mkdir()


def remove_the_manifest(root: Path) -> None:
    (root / "manifest.json").unlink()


def link_the_manifest(root: Path) -> None:
    shutil.move(root / "manifest.json", root.parent / "manifest.json")
    (root / "manifest.json").symlink_to(root.parent / "manifest.json")


@pytest.mark.parametrize(
    ("damage", "code", "words"),
    [
        (flip_a_byte, ErrorCode.FILE_ALTERED, "'model.onnx' does not have the sha256"),
        (append_a_byte, ErrorCode.FILE_ALTERED, "'model.onnx' has 12 bytes"),
        (remove_a_file, ErrorCode.FILE_MISSING, "'model.onnx' is missing"),
        (add_a_file, ErrorCode.FILE_UNLISTED, "'extra/stranger.py' is not in the manifest"),
        (replace_by_a_link, ErrorCode.PATH_UNSAFE, "'model.onnx' is rejected: it is a symbolic"),
        (replace_by_a_hard_link, ErrorCode.PATH_UNSAFE, "'model.onnx' is rejected: it is a hard"),
        (link_a_directory, ErrorCode.PATH_UNSAFE, "'extra' is rejected: it is a symbolic"),
        (replace_by_a_directory, ErrorCode.FILE_MISSING, "'model.onnx' is missing"),
        (remove_the_manifest, ErrorCode.MANIFEST_INVALID, "is not a bundle"),
        (link_the_manifest, ErrorCode.PATH_UNSAFE, "'manifest.json' is rejected"),
    ],
)
def test_verify__damaged_bundle__is_rejected_with_path_and_reason(
    sealed: VerifiedBundle, damage: Callable[[Path], None], code: ErrorCode, words: str
) -> None:
    damage(sealed.root)
    with pytest.raises(MlctlError) as caught:
        verify(sealed.root)
    assert caught.value.code is code
    assert words in caught.value.message


def test_verify__another_digest__is_rejected(sealed: VerifiedBundle) -> None:
    with pytest.raises(MlctlError, match="expected " + "1" * 64) as caught:
        verify(sealed.root, expected_digest="1" * 64)
    assert caught.value.code is ErrorCode.DIGEST_MISMATCH


def test_verify__manifest_in_another_layout__is_rejected(sealed: VerifiedBundle) -> None:
    path = sealed.root / "manifest.json"
    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(MlctlError, match="not in canonical form") as caught:
        verify(sealed.root)
    assert caught.value.code is ErrorCode.MANIFEST_INVALID


def test_read_manifest__unfinished_bundle__fails(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"x")
    with pytest.raises(MlctlError) as caught:
        read_manifest(tmp_path)
    assert caught.value.code is ErrorCode.MANIFEST_INVALID


def test_bundle_path__file_is_not_listed__fails(sealed: VerifiedBundle) -> None:
    with pytest.raises(MlctlError, match="no file 'other'"):
        sealed.path("other")
