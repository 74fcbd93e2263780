"""A Bento as an artifact in an OCI image layout, which the tools of registries can copy.

The folder follows the OCI image specification 1.1: `oci-layout`, `index.json` and blobs by their
digests. The config blob is the listing, the only layer a compressed tar of the files. Both depend
on the Bento's bytes alone, so the same Bento always has the same digests. BentoML's export does
not keep that promise: its archives hold times and owners.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

from mlctl.bento.transfer.archive import MAX_LISTING_BYTES, Listing, check_room, parse_listing
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.files import exclusive, sha256_file, write_atomic
from mlctl.core.paths import resolve_inside
from mlctl.services.layout.bento_store import BentoInfo

ARTIFACT_TYPE = "application/vnd.mlctl.bento.v1"
CONFIG_TYPE = "application/vnd.mlctl.bento.listing.v1+json"
LAYER_TYPE = "application/vnd.mlctl.bento.layer.v1.tar+gzip"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
_REF = "org.opencontainers.image.ref.name"
_LAYOUT = {"imageLayoutVersion": "1.0.0"}
_MAX_DOCUMENT = 4 << 20
_CHUNK = 1 << 20
# Bytes of the headers and padding of one file, and of the end of an archive.
_MAX_HEADERS, _MAX_TRAILER = 4 << 10, 64 << 10
Document = dict[str, Any]


def write_layout(folder: Path, bento: BentoInfo, listing: Listing) -> str:
    """Add the Bento to the layout `folder` and return the digest of its manifest.

    INVALID_INPUT if the folder holds something else.
    """
    _open(folder)
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True, exist_ok=True)
    config = _put(blobs, listing.canonical(), CONFIG_TYPE)
    layer = _pack(blobs, bento, listing)
    annotations = {
        "org.opencontainers.image.title": listing.name,
        "org.opencontainers.image.version": listing.version,
        **{name: text for name, text in bento.labels.items() if name.startswith("mlctl.")},
        "mlctl.archive": listing.archive_digest,
    }
    document = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "artifactType": ARTIFACT_TYPE,
        "config": config,
        "layers": [layer],
        "annotations": annotations,
    }
    manifest = _put(blobs, _json(document), MANIFEST_TYPE)
    ref = _ref(listing.tag)
    entry = {**manifest, "artifactType": ARTIFACT_TYPE, "annotations": {_REF: ref}}
    with exclusive(folder / ".lock"):
        index = _read_index(folder)
        others = [each for each in index["manifests"] if _named(each) != ref]
        index["manifests"] = sorted([*others, entry], key=lambda each: str(_named(each)))
        write_atomic(folder / "index.json", _json(index))
        write_atomic(folder / "oci-layout", _json(_LAYOUT))
    return str(manifest["digest"])


def read_layout(folder: Path, tag: str | None, target: Path) -> Listing:
    """Extract the Bento `tag` (None: the only one) of the layout `folder` to `target`, verified.

    BENTO_NOT_FOUND lists the Bentos of the layout. FILE_ALTERED for a blob that does not match its
    digest, MANIFEST_INVALID for documents of another kind, DISK_FULL without room.
    """
    manifest = _document(folder, _choose(folder, tag), MANIFEST_TYPE)
    layers = manifest.get("layers")
    one = isinstance(layers, list) and len(layers) == 1
    if manifest.get("artifactType") != ARTIFACT_TYPE or not one:
        raise _damaged("the manifest does not describe a Bento")
    listing = parse_listing(_blob(folder, manifest.get("config"), CONFIG_TYPE).read_bytes())
    layer = _blob(folder, manifest["layers"][0], LAYER_TYPE)
    check_room(listing, target)
    _unpack(layer, listing, target)
    return listing


def _open(folder: Path) -> None:
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "oci-layout").is_file():
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{folder} is not empty and is not an OCI image layout",
            "Name an empty or a new folder: --push oci:FOLDER.",
        )
    folder.mkdir(parents=True, exist_ok=True)


def _read_index(folder: Path) -> Document:
    path = folder / "index.json"
    if not path.is_file():
        return {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": []}
    if path.stat().st_size > _MAX_DOCUMENT:
        raise _damaged("index.json is too large")
    index = _parse(path.read_bytes())
    manifests = index.get("manifests")
    if not isinstance(manifests, list) or not all(isinstance(one, dict) for one in manifests):
        raise _damaged("index.json has no list of manifests")
    return index


def _choose(folder: Path, tag: str | None) -> Document:
    if not (folder / "oci-layout").is_file():
        raise MlctlError(
            ErrorCode.BENTO_NOT_FOUND,
            f"there is no OCI image layout at {folder}",
            "`mlctl build NAME --push oci:FOLDER` writes one.",
        )
    ours = [
        each
        for each in _read_index(folder)["manifests"]
        if each.get("artifactType") == ARTIFACT_TYPE
    ]
    found = [each for each in ours if tag is None or _named(each) == _ref(tag)]
    if len(found) == 1:
        return cast(Document, found[0])
    names = ", ".join(sorted(str(_named(each)) for each in ours)) or "none"
    raise MlctlError(
        ErrorCode.BENTO_NOT_FOUND,
        f"expected {'one Bento' if tag is None else repr(tag)}; the layout has: {names}",
        "Name it: oci:PATH#NAME:VERSION.",
    )


def _ref(tag: str) -> str:
    """Return a Bento's name in a layout: tools of registries take a colon for the end of a path."""
    return tag.replace(":", "-")


def _named(entry: Mapping[str, Any]) -> str | None:
    annotations = entry.get("annotations")
    return annotations.get(_REF) if isinstance(annotations, Mapping) else None


def _document(folder: Path, descriptor: Document, kind: str) -> Document:
    path = _blob(folder, descriptor, kind)
    if path.stat().st_size > _MAX_DOCUMENT:
        raise _damaged("a manifest is too large")
    return _parse(path.read_bytes())


def _blob(folder: Path, descriptor: Any, kind: str) -> Path:
    """Return the path of a blob that matches its descriptor."""
    if not isinstance(descriptor, dict) or descriptor.get("mediaType") != kind:
        raise _damaged(f"there is no {kind}")
    algorithm, _, digest = str(descriptor.get("digest")).partition(":")
    if algorithm != "sha256" or len(digest) != 64 or set(digest) - set("0123456789abcdef"):
        raise _damaged("a digest is not a sha256")
    path = resolve_inside(folder, f"blobs/sha256/{digest}")
    if not path.is_file():
        raise MlctlError(ErrorCode.FILE_MISSING, f"blob {digest} is missing")
    size = descriptor.get("size")
    too_large = kind == CONFIG_TYPE and path.stat().st_size > MAX_LISTING_BYTES
    if path.stat().st_size != size or too_large or sha256_file(path) != digest:
        raise MlctlError(ErrorCode.FILE_ALTERED, f"blob {digest} does not match its digest")
    return path


def _put(blobs: Path, content: bytes, kind: str) -> Document:
    digest = hashlib.sha256(content).hexdigest()
    write_atomic(blobs / digest, content)
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)}


def _pack(blobs: Path, bento: BentoInfo, listing: Listing) -> Document:
    """Write the layer: files in the order of the list, without times, owners or a file name."""
    scratch = blobs / f".layer-{listing.archive_digest}"
    try:
        with (
            scratch.open("wb") as raw,
            gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for entry in listing.files:
                member = tarfile.TarInfo(entry.path)
                member.size, member.mode = entry.size, 0o644
                with resolve_inside(bento.path, entry.path).open("rb") as file:
                    archive.addfile(member, file)
        digest = sha256_file(scratch)
        size = scratch.stat().st_size
        scratch.replace(blobs / digest)
    finally:
        scratch.unlink(missing_ok=True)
    title = {"org.opencontainers.image.title": f"{listing.name}-{listing.version}.tar.gz"}
    return {
        "mediaType": LAYER_TYPE,
        "digest": f"sha256:{digest}",
        "size": size,
        "annotations": title,
    }


def _unpack(layer: Path, listing: Listing, target: Path) -> None:
    """Extract the listed files and nothing else; names, sizes and types are checked first."""
    wanted = {entry.path: entry.size for entry in listing.files}
    max_bytes = sum(wanted.values()) + len(wanted) * _MAX_HEADERS + _MAX_TRAILER
    try:
        with (
            gzip.open(layer, "rb") as packed,
            tarfile.open(
                fileobj=cast(BinaryIO, _LimitedReader(packed, max_bytes)), mode="r|"
            ) as archive,
        ):
            for member in archive:
                size = wanted.pop(member.name, None)
                if size is None or not member.isreg() or member.issparse() or member.size != size:
                    raise MlctlError(
                        ErrorCode.FILE_UNLISTED, f"{member.name[:200]!r} is not in the list"
                    )
                source = archive.extractfile(member)
                assert source is not None  # a regular file has content
                _write(resolve_inside(target, member.name), cast(BinaryIO, source))
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise MlctlError(ErrorCode.FILE_ALTERED, "the layer is not a valid archive") from error
    if wanted:
        raise MlctlError(ErrorCode.FILE_MISSING, f"file {min(wanted)!r} is missing")


class _LimitedReader:
    """Reads at most `max_bytes` bytes: headers of any size compress to almost nothing."""

    def __init__(self, source: gzip.GzipFile, max_bytes: int) -> None:
        self._source = source
        self._remaining = max_bytes

    def read(self, size: int) -> bytes:
        data = self._source.read(size)
        self._remaining -= len(data)
        if self._remaining < 0:
            raise MlctlError(ErrorCode.FILE_ALTERED, "the layer is larger than the files it lists")
        return data


def _write(path: Path, source: BinaryIO) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        while chunk := source.read(_CHUNK):
            file.write(chunk)


def _parse(content: bytes) -> Document:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _damaged("a document is not JSON") from error
    if not isinstance(document, dict):
        raise _damaged("a document is not a JSON object")
    return document


def _json(document: Document) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _damaged(reason: str) -> MlctlError:
    return MlctlError(ErrorCode.MANIFEST_INVALID, f"the OCI image layout is not valid: {reason}")
