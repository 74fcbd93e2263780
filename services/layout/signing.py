"""Signatures of bundles, made and verified with OpenSSF's model-signing, without any service.

A signature is made with an elliptic-curve private key and covers every file of a bundle. It is
outside the bundle, because a bundle has only files that its manifest lists: FOLDER.sig next to a
folder, `signatures/NAME.sig` in a Bento.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.files import write_atomic
from mlctl.core.packages import install_hint, installed_version

SIGNATURES_FOLDER = "signatures"
# Packages that verify a signature; model-signing does not declare the second one.
PACKAGES = ("model-signing", "pyopenssl")
_MAX_BYTES = 16 << 20


def signature_beside(root: Path) -> Path:
    """Return the path of the signature of the bundle in the folder `root`."""
    return root.with_name(f"{root.name}.sig")


def signature_in(source: Path, name: str) -> Path:
    """Return the path of the signature of the model `name` in a Bento's sources."""
    return source / SIGNATURES_FOLDER / f"{name}.sig"


def signing_requirements(source: Path) -> list[str]:
    """Return `package==version` of the packages that verify a Bento's signatures, if it has any.

    RUNTIME_MISSING if they are not installed.
    """
    if not (source / SIGNATURES_FOLDER).is_dir():
        return []
    versions = {name: installed_version(name) for name in PACKAGES}
    if None in versions.values():
        raise _missing()
    return [f"{name}=={version}" for name, version in versions.items()]


def sign(bundle: VerifiedBundle, key: Path, signature: Path, password: str | None = None) -> None:
    """Sign `bundle` with the private key in the PEM file `key`, and write `signature`.

    INVALID_INPUT if the key cannot be used, RUNTIME_MISSING without model-signing.
    """
    try:
        from model_signing import signing
    except ImportError as error:
        raise _missing() from error
    _require_key(key)
    signature.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="mlctl-sign-") as folder:
        made = Path(folder) / "signature"
        try:
            # Annotated as str, but passed on to a function that accepts bytes only.
            secret: Any = None if password is None else password.encode()
            made_by: Any = signing.Config  # untyped
            config = made_by().use_elliptic_key_signer(private_key=key, password=secret)
        except (ValueError, TypeError, AttributeError) as error:
            raise _bad_key(key, "private") from error
        config.sign(bundle.root, made)
        write_atomic(signature, made.read_bytes())


def check_signature(bundle: VerifiedBundle, public_key: Path, signature: Path) -> None:
    """Prove that `signature` is that of exactly this bundle under the PEM file `public_key`.

    SIGNATURE_INVALID if it is missing or is not, INVALID_INPUT if the key cannot be used,
    RUNTIME_MISSING without model-signing.
    """
    try:
        from model_signing import verifying
    except ImportError as error:
        raise _missing() from error
    name = bundle.manifest.name
    _require_key(public_key)
    if signature.is_symlink() or not signature.is_file() or signature.stat().st_size > _MAX_BYTES:
        raise MlctlError(ErrorCode.SIGNATURE_INVALID, f"the bundle of {name!r} is not signed")
    try:
        made_by: Any = verifying.Config  # untyped
        config = made_by().use_elliptic_key_verifier(public_key=public_key)
    except (ValueError, TypeError, AttributeError) as error:
        raise _bad_key(public_key, "public") from error
    try:
        config.verify(bundle.root, signature)
    except Exception as error:  # a forged file makes the library raise any exception
        raise MlctlError(
            ErrorCode.SIGNATURE_INVALID,
            f"the signature of the bundle of {name!r} is not valid under the public key",
        ) from error


def require_signed(bundle: VerifiedBundle, public_key: Path | None) -> None:
    """Verify the signature of a bundle before it is loaded, if a `public_key` is set.

    SIGNATURE_INVALID if its signature, in its Bento or next to it, is missing or invalid.
    """
    if public_key is None:
        return
    root, name = bundle.root, bundle.manifest.name
    paths = [signature_in(source, name) for source in (root.parent, root.parent.parent)]
    check_signature(bundle, public_key, next(filter(Path.is_file, paths), signature_beside(root)))


def _require_key(key: Path) -> None:
    if not key.is_file():
        raise MlctlError(ErrorCode.INVALID_INPUT, f"key file {key} does not exist")


def _bad_key(key: Path, kind: str) -> MlctlError:
    return MlctlError(
        ErrorCode.INVALID_INPUT,
        f"{key} is not a {kind} key of the curve P-256, P-384 or P-521 in PEM, or its password "
        "is wrong",
        "Make a pair with `openssl ecparam -name prime256v1 -genkey -noout -out key.pem` and "
        "`openssl ec -in key.pem -pubout -out key.pub`.",
    )


def _missing() -> MlctlError:
    return MlctlError(
        ErrorCode.RUNTIME_MISSING,
        "the packages that sign and verify bundles are not installed",
        install_hint("signing"),
    )
