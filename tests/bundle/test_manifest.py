import json
from pathlib import Path
from typing import Any

import pytest

from bundle.errors import ErrorCode, MlctlError
from bundle.manifest import (
    MAX_MANIFEST_BYTES,
    canonical_json,
    manifest_json_schema,
    parse_manifest,
)
from tests.support.manifests import ZERO_SHA, manifest_document, small_manifest


def parse(document: dict[str, Any]) -> object:
    return parse_manifest(json.dumps(document).encode())


def test_a_manifest_survives_the_round_trip() -> None:
    manifest = small_manifest()
    assert parse_manifest(manifest.canonical()) == manifest


def test_the_digest_ignores_layout_and_key_order() -> None:
    document = manifest_document()
    shuffled = dict(reversed(document.items()))
    pretty = json.dumps(shuffled, indent=3).encode()
    assert parse_manifest(pretty).digest == small_manifest().digest


def test_the_digest_is_the_one_that_schema_version_1_defines() -> None:
    # A change of this value breaks every bundle ever published: it needs a new schema version.
    assert small_manifest().digest == (
        "f66220ff51323cfadfe89e53ff12bf625e66b196115d635d509590ad9f9cbe48"
    )


@pytest.mark.parametrize("version", [2, 0, "1", None, True, 1.0])
def test_unknown_schema_versions_are_refused_by_name(version: object) -> None:
    with pytest.raises(MlctlError, match="schema version") as caught:
        parse(manifest_document() | {"schema_version": version})
    assert caught.value.code is ErrorCode.MANIFEST_VERSION_UNKNOWN


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"surprise": 1}, "surprise"),
        ({"name": "../x"}, "name"),
        ({"name": "Digits"}, "name"),
        ({"files": [{"path": "../x", "size": 1, "sha256": ZERO_SHA}]}, "files.0.path"),
        ({"files": [{"path": "x", "size": -1, "sha256": ZERO_SHA}]}, "files.0.size"),
        ({"files": [{"path": "x", "size": "1", "sha256": ZERO_SHA}]}, "files.0.size"),
        ({"files": [{"path": "x", "size": 1, "sha256": "AB"}]}, "files.0.sha256"),
        ({"files": [{"path": p, "size": 1, "sha256": ZERO_SHA} for p in "ba"]}, "sorted"),
        ({"files": [{"path": p, "size": 1, "sha256": ZERO_SHA} for p in "aa"]}, "repeats"),
        ({"files": [{"path": "manifest.json", "size": 1, "sha256": ZERO_SHA}]}, "manifest.json"),
        ({"batching": {"max_rows": 8, "buckets": [1, 4], "row_independent": True}}, "max_rows"),
        ({"batching": {"max_rows": 4, "buckets": [4, 1, 4], "row_independent": True}}, "ascend"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], where: str) -> None:
    with pytest.raises(MlctlError) as caught:
        parse(manifest_document() | change)
    assert caught.value.code is ErrorCode.MANIFEST_INVALID
    assert where in caught.value.message


@pytest.mark.parametrize(
    "content",
    [
        b"", b"[]", b"{", b"\xff\xfe", b'{"schema_version": 1, "schema_version": 1}',
        b'{"schema_version": NaN}', b"[" * 100_000, b" " * (MAX_MANIFEST_BYTES + 1),
    ],
    ids=["empty", "list", "cut", "not-utf8", "twice", "nan", "deep", "large"],
)  # fmt: skip
def test_garbage_is_refused(content: bytes) -> None:
    with pytest.raises(MlctlError, match=r"^manifest\.json: ") as caught:
        parse_manifest(content)
    assert caught.value.code is ErrorCode.MANIFEST_INVALID


def test_canonical_json_refuses_what_json_cannot_say() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json({"x": float("nan")})


def test_the_published_schema_is_current() -> None:
    published = Path(__file__).parents[2] / "docs" / "manifest.schema.json"
    assert json.loads(published.read_text()) == manifest_json_schema(), (
        "run `python -m docs.generate`"
    )
