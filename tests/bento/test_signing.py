"""Signatures: made and verified with an offline key pair, and required before a start."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable
from pathlib import Path

import pytest

from mlctl.bento.containers.resolve import requirements_of
from mlctl.bento.packaging import BuiltBento
from mlctl.bento.signed import find_signable, verify_bento
from mlctl.bundle.manifest import EVIDENCE_NAME
from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.layout.bento_store import BentoInfo, find_bento
from mlctl.services.layout.signing import check_signature, sign, signature_beside, signature_in
from mlctl.services.online.server.service_bundle import find_trusted_bundles
from mlctl.services.online.settings import ServerSettings
from tests.support.bundles import make_bundle
from tests.support.keys import make_pair

PASSWORD = "a password"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_pair(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def signed(bundle: VerifiedBundle, keys: tuple[Path, Path]) -> Path:
    """The signature of `bundle`."""
    signature = signature_beside(bundle.root)
    sign(bundle, keys[0], signature)
    return signature


def code_of(function: Callable[[], object]) -> ErrorCode:
    with pytest.raises(MlctlError) as caught:
        function()
    return caught.value.code


def test_check__other_bundle_or_key__is_rejected(
    bundle: VerifiedBundle, keys: tuple[Path, Path], signed: Path, tmp_path: Path
) -> None:
    check_signature(bundle, keys[1], signed)
    stranger = make_pair(tmp_path / "stranger")[1]
    assert code_of(lambda: check_signature(bundle, stranger, signed)) is ErrorCode.SIGNATURE_INVALID
    other = make_bundle(tmp_path / "other", scale=3.0)
    assert code_of(lambda: check_signature(other, keys[1], signed)) is ErrorCode.SIGNATURE_INVALID
    signed.unlink()
    assert code_of(lambda: check_signature(bundle, keys[1], signed)) is ErrorCode.SIGNATURE_INVALID


def test_check__changed_file__is_rejected(
    bundle: VerifiedBundle, signed: Path, keys: tuple[Path, Path]
) -> None:
    with (bundle.root / EVIDENCE_NAME).open("a") as file:
        file.write(" ")
    assert code_of(lambda: check_signature(bundle, keys[1], signed)) is ErrorCode.SIGNATURE_INVALID


def test_check__forged_statement__is_rejected(
    bundle: VerifiedBundle, signed: Path, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    """Move the signer's statement of one bundle to another bundle."""
    other = make_bundle(tmp_path / "other", scale=3.0)
    document = json.loads(signed.read_text())
    statement = b64decode(document["dsseEnvelope"]["payload"]).decode()
    forged = statement.replace(bundle.digest, other.digest)
    assert forged != statement
    document["dsseEnvelope"]["payload"] = b64encode(forged.encode()).decode()
    signed.write_text(json.dumps(document))
    assert code_of(lambda: check_signature(other, keys[1], signed)) is ErrorCode.SIGNATURE_INVALID


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff\xfe", b'{"dsseEnvelope": {}}'])
def test_check__malformed_signature__is_rejected(
    bundle: VerifiedBundle, keys: tuple[Path, Path], tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "rubbish.sig"
    path.write_bytes(content)
    assert code_of(lambda: check_signature(bundle, keys[1], path)) is ErrorCode.SIGNATURE_INVALID


def test_sign__key_with_a_password__needs_it(bundle: VerifiedBundle, tmp_path: Path) -> None:
    private, public = make_pair(tmp_path / "closed", PASSWORD)
    signature = signature_beside(bundle.root)
    for wrong in (None, "another"):
        rejected = code_of(lambda wrong=wrong: sign(bundle, private, signature, wrong))  # type: ignore[misc]
        assert rejected is ErrorCode.INVALID_INPUT
    assert not signature.exists()
    sign(bundle, private, signature, PASSWORD)
    check_signature(bundle, public, signature)


def test_sign_and_check__file_that_is_no_key__is_rejected(
    bundle: VerifiedBundle, keys: tuple[Path, Path], signed: Path, tmp_path: Path
) -> None:
    assert code_of(lambda: sign(bundle, keys[1], signed)) is ErrorCode.INVALID_INPUT
    assert code_of(lambda: sign(bundle, tmp_path / "none", signed)) is ErrorCode.INVALID_INPUT
    assert code_of(lambda: check_signature(bundle, keys[0], signed)) is ErrorCode.INVALID_INPUT
    assert (
        code_of(lambda: check_signature(bundle, tmp_path / "none", signed))
        is ErrorCode.INVALID_INPUT
    )


def test_find_trusted_bundles__unsigned_bundle__is_rejected(
    bundle: VerifiedBundle, keys: tuple[Path, Path]
) -> None:
    settings = ServerSettings(bundle=bundle.root, require_signature=keys[1])
    assert code_of(lambda: find_trusted_bundles(settings)) is ErrorCode.SIGNATURE_INVALID
    sign(bundle, keys[0], signature_beside(bundle.root))
    assert find_trusted_bundles(settings).digest == bundle.digest


@pytest.fixture
def bento(built: BuiltBento, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BentoInfo:
    """A copy of the built Bento in a store of its own."""
    name, _, version = built.tag.partition(":")
    shutil.copytree(built.path, tmp_path / "store" / "bentos" / name / version)
    monkeypatch.setenv("BENTOML_HOME", str(tmp_path / "store"))
    return find_bento(built.tag)


def sign_bento(bento: BentoInfo, key: Path) -> None:
    for bundle, signature in find_signable(bento.tag):
        sign(bundle, key, signature)


@pytest.mark.slow
def test_signed_bento__signatures_and_packages__are_in_it(
    bento: BentoInfo, keys: tuple[Path, Path]
) -> None:
    assert code_of(lambda: verify_bento(bento, keys[1])) is ErrorCode.SIGNATURE_INVALID
    verify_bento(bento, None)
    plain = requirements_of(bento)
    sign_bento(bento, keys[0])
    verify_bento(bento, keys[1])
    assert signature_in(bento.source, "tiny").is_file()
    names = {line.partition("==")[0] for line in requirements_of(bento)[len(plain) :]}
    assert names == {"model-signing", "pyopenssl"}
    settings = ServerSettings(require_signature=keys[1])
    assert find_trusted_bundles(settings, bento.source).digest == bento.labels["mlctl.digest"]


@pytest.mark.slow
def test_server__required_signature_missing__does_not_start(
    bento: BentoInfo, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    """The server's own check_signature, in a process that no command of mlctl started."""
    environment = {**os.environ, "MLCTL_REQUIRE_SIGNATURE": str(keys[1]), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "bentoml", "serve", str(bento.path), "--port", "0"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 4, done.stderr
    assert "mlctl does not serve this bundle (signature_invalid)" in done.stderr
    assert "the bundle of 'tiny' is not signed" in done.stderr
