import json
from pathlib import Path
from typing import Any

import pytest

from mlctl.bundle.manifest import (
    MAX_MANIFEST_BYTES,
    TRANSFORM_NAME,
    manifest_json_schema,
    parse_manifest,
)
from mlctl.bundle.tensors import MissingValues
from mlctl.core.canonical import canonical_json
from mlctl.core.errors import ErrorCode, MlctlError
from tests.support.manifests import ZERO_SHA, manifest_document, small_manifest


def parse(document: dict[str, Any]) -> object:
    return parse_manifest(json.dumps(document).encode())


def test_manifest__written_and_read__is_the_same() -> None:
    manifest = small_manifest()
    assert parse_manifest(manifest.canonical()) == manifest


def test_digest__other_layout_and_key_order__is_the_same() -> None:
    document = manifest_document()
    shuffled = dict(reversed(document.items()))
    pretty = json.dumps(shuffled, indent=3).encode()
    assert parse_manifest(pretty).digest == small_manifest().digest


def test_digest__schema_version_1__is_pinned() -> None:
    # A change of this value breaks every bundle ever published: it needs a new schema version.
    assert small_manifest().digest == (
        "be74554066ef3b43624bede66c94ac3da05172b0d609c4c25f086d0948148944"
    )


def transformed() -> dict[str, Any]:
    """The document of a bundle whose transform takes bytes and makes the model's images of them."""
    document = manifest_document()
    model = document["signature"]
    picture = {"name": "picture", "dtype": "BYTES", "shape": [-1]}
    files = [{"path": TRANSFORM_NAME, "size": 1, "sha256": ZERO_SHA}]
    return document | {
        "signature": {**model, "inputs": [picture]},
        "transform": {"model_signature": model},
        "files": files,
    }


def test_manifest__with_a_transform__has_the_model_signature_and_the_api_signature() -> None:
    plain = small_manifest()
    assert plain.model_signature == plain.signature
    manifest = parse_manifest(json.dumps(transformed()).encode())
    assert manifest.signature.inputs[0].name == "picture"
    assert manifest.model_signature == plain.signature
    assert parse_manifest(manifest.canonical()) == manifest
    assert manifest.digest != plain.digest


def sequence_document(pad: dict[str, Any]) -> dict[str, Any]:
    document = manifest_document()
    document["signature"]["inputs"] = [
        {"name": "ids", "dtype": "INT64", "shape": [-1, -1]},
        {"name": "kind", "dtype": "INT64", "shape": [-1, 3]},
        {"name": "flag", "dtype": "INT64", "shape": [-1]},
    ]
    document["batching"]["pad"] = pad
    return document


def test_manifest__batching_unset__is_left_out() -> None:
    assert json.loads(small_manifest().canonical())["batching"].keys() == {
        "max_rows",
        "buckets",
        "row_independent",
    }
    said = manifest_document()
    said["batching"] |= {"max_wait_ms": 0.0, "max_queue_rows": 9, "max_queue_ms": 50.0}
    said["batching"] |= {"max_length": 5, "max_body_bytes": 9000}
    manifest = parse_manifest(json.dumps(said).encode())
    assert parse_manifest(manifest.canonical()) == manifest
    assert manifest.batching.max_wait_ms == 0.0
    assert manifest.digest != small_manifest().digest


def test_padding__input_with_a_length__is_allowed() -> None:
    manifest = parse_manifest(json.dumps(sequence_document({"ids": 1})).encode())
    assert manifest.batching.pad == {"ids": 1}
    assert parse_manifest(manifest.canonical()) == manifest


@pytest.mark.parametrize(
    "pad", [{"kind": 0}, {"flag": 0}, {"other": 0}, {"ids": "x"}, {"ids": None}]
)
def test_padding__other_input__is_rejected(pad: dict[str, Any]) -> None:
    with pytest.raises(MlctlError, match="pad") as caught:
        parse(sequence_document(pad))
    assert caught.value.code is ErrorCode.MANIFEST_INVALID


def test_manifest__no_transform__does_not_mention_it() -> None:
    assert b"transform" not in small_manifest().canonical()


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"transform": None}, "need each other"),
        ({"files": [{"path": "model.onnx", "size": 1, "sha256": ZERO_SHA}]}, "need each other"),
        ({"transform": {}}, "transform.model_signature"),
        ({"signature": manifest_document()["signature"] | {"inputs": [
            {"name": "x", "dtype": "FP32", "shape": [4]}
        ]}}, "only one has a batch size"),
    ],
)  # fmt: skip
def test_manifest__impossible_transform__is_rejected(change: dict[str, Any], where: str) -> None:
    with pytest.raises(MlctlError, match=where) as caught:
        parse(transformed() | change)
    assert caught.value.code is ErrorCode.MANIFEST_INVALID


@pytest.mark.parametrize("version", [2, 0, "1", None, True, 1.0])
def test_manifest__unknown_schema_version__is_rejected_by_name(version: object) -> None:
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
def test_manifest__invalid_field__is_named(change: dict[str, Any], where: str) -> None:
    with pytest.raises(MlctlError) as caught:
        parse(manifest_document() | change)
    assert caught.value.code is ErrorCode.MANIFEST_INVALID
    assert where in caught.value.message


def test_manifest__errors_in_it__names_the_first_and_counts_the_others() -> None:
    one = manifest_document() | {"name": "Digits"}
    assert message(json.dumps(one).encode()).startswith("manifest.json: name: ")
    assert "more)" not in message(json.dumps(one).encode())
    two = one | {"files": [{"path": "../x", "size": -1, "sha256": ZERO_SHA}]}
    assert message(json.dumps(two).encode()).endswith(" (and 2 more)")


def test_manifest__fields_contradict_each_other__names_the_whole_document() -> None:
    document = transformed() | {"files": [{"path": "x", "size": 1, "sha256": ZERO_SHA}]}
    assert message(json.dumps(document).encode()) == (
        "manifest.json: (whole document): Value error, the field transform and the file "
        f"{TRANSFORM_NAME} need each other"
    )


def test_manifest__path_leaves_the_bundle__says_so() -> None:
    document = manifest_document() | {"files": [{"path": "../x", "size": 1, "sha256": ZERO_SHA}]}
    found = message(json.dumps(document).encode())
    assert found.startswith("manifest.json: files.0.path: Value error, ")
    assert "'../x'" in found


def message(content: bytes) -> str:
    with pytest.raises(MlctlError) as caught:
        parse_manifest(content)
    assert caught.value.code is ErrorCode.MANIFEST_INVALID
    return caught.value.message


# Complete but for one key that occurs twice: a lenient reader would take the last one.
TWICE = json.dumps(manifest_document()).replace("{", '{"name": "other", ', 1).encode()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "it is not valid JSON: "),
        (b"[]", "it is not a JSON object"),
        (b"{", "it is not valid JSON: "),
        (b"\xff\xfe", "it is not valid JSON: "),
        (TWICE, "it is not valid JSON: an object has the same key twice"),
        (b'{"schema_version": NaN}', "it is not valid JSON: NaN is not allowed"),
        (b"[" * 100_000, "it is not valid JSON: "),
        (b" " * (MAX_MANIFEST_BYTES + 1), f"it is larger than {MAX_MANIFEST_BYTES} bytes"),
    ],
    ids=["empty", "list", "cut", "not-utf8", "twice", "nan", "deep", "large"],
)
def test_manifest__is_no_json_object__says_why(content: bytes, problem: str) -> None:
    found = message(content)
    assert found.startswith(f"manifest.json: {problem}")
    assert found.endswith(problem) or problem.endswith(": ")
    assert not found.endswith("None")


def test_manifest__of_the_largest_size__is_read() -> None:
    content = json.dumps(manifest_document()).encode().ljust(MAX_MANIFEST_BYTES)
    assert parse_manifest(content) == small_manifest()


def test_canonical_json__text_beyond_ascii__is_utf_8() -> None:
    assert canonical_json({"b": "\u00fc", "a": 1}) == b'{"a":1,"b":"\xc3\xbc"}'


def test_canonical_json__value_without_json_form__is_rejected() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json({"x": float("nan")})


def test_manifest__published_schema__is_current() -> None:
    published = Path(__file__).parents[2] / "docs" / "manifest.schema.json"
    assert json.loads(published.read_text()) == manifest_json_schema(), (
        "run `python -m docs.generate`"
    )


def constrained(**constraints: Any) -> dict[str, Any]:
    """The document of a model of tokens with `constraints` on its inputs."""
    document = manifest_document()
    pair = {"dtype": "INT64", "shape": [-1, -1]}
    inputs = [
        {"name": "ids", **pair},
        {"name": "mask", **pair, "dtype": "FP32"},
        {"name": "age", "dtype": "FP64", "shape": [-1]},
        {"name": "city", "dtype": "BYTES", "shape": [-1]},
        {"name": "table", "dtype": "FP64", "shape": [-1, 3]},
    ]
    signature = {**document["signature"], "inputs": inputs}
    return document | {"signature": signature, "input_constraints": constraints}


def axes(*pairs: tuple[str, int]) -> list[list[dict[str, Any]]]:
    return [[{"input": name, "axis": axis} for name, axis in pairs]]


def test_input_constraints__round_trip__are_kept_and_canonical() -> None:
    lengths = axes(("ids", 1), ("mask", 1))
    manifest = parse_manifest(
        json.dumps(constrained(ranges={"ids": [-9, 8]}, equal_lengths=lengths)).encode()
    )
    constraints = manifest.input_constraints
    assert constraints is not None
    assert constraints.ranges == {"ids": (-9, 8)}
    assert [each.input for each in constraints.equal_lengths[0]] == ["ids", "mask"]
    assert parse_manifest(manifest.canonical()) == manifest


def test_input_constraints__excluded_values__are_kept_and_not_mentioned_without_any() -> None:
    excluded = {
        "present": ["age"],
        "nonzero": ["ids"],
        "limits": {"age": [-1.5, 2.5], "table[2]": [0.0, 1.0]},
        "categories": {"city": ["Oslo"], "ids": [1, 2]},
        "forbidden_characters": {"city": "_"},
    }
    manifest = parse_manifest(json.dumps(constrained(**excluded)).encode())
    assert json.loads(manifest.canonical())["input_constraints"] == {
        "ranges": {},
        "equal_lengths": [],
        "nullable": [],
        "optional": [],
        **excluded,
    }
    assert parse_manifest(manifest.canonical()) == manifest
    plain = parse_manifest(json.dumps(constrained(nullable=["age"])).encode())
    assert b"categories" not in plain.canonical()


def test_input_constraints__none__are_not_mentioned() -> None:
    assert b"constraints" not in small_manifest().canonical()


@pytest.mark.parametrize(
    ("constraints", "where"),
    [
        ({"ranges": {"other": [0, 1]}}, "'other' is no integer input"),
        ({"ranges": {"mask": [0, 1]}}, "'mask' is no integer input"),
        ({"ranges": {"ids": [2, 1]}}, "from 2 to 1"),
        ({"nullable": ["other"]}, "'other' is no input of FP32, FP64 or BYTES"),
        ({"nullable": ["ids"]}, "'ids' is no input of FP32, FP64 or BYTES"),
        ({"present": ["other"]}, "present: 'other' is no input that fits"),
        ({"present": ["ids"]}, "present: 'ids' is no input that fits"),
        ({"present": ["table[3]"]}, "present: 'table\\[3\\]' is no input that fits"),
        ({"present": ["mask[0]"]}, "present: 'mask\\[0\\]' is no input that fits"),
        ({"present": ["age[0]"]}, "present: 'age\\[0\\]' is no input that fits"),
        ({"nonzero": ["city"]}, "nonzero: 'city' is no input that fits"),
        ({"limits": {"ids": [0.0, 1.0]}}, "limits: 'ids' is no input that fits"),
        ({"categories": {"other": [1]}}, "categories: 'other' is no input that fits"),
        ({"forbidden_characters": {"age": "x"}}, "characters: 'age' is no input that fits"),
        ({"optional": ["age"]}, "'age' is no nullable input of shape \\[-1\\]"),
        (
            {"nullable": ["mask"], "optional": ["mask"]},
            "'mask' is no nullable input of shape \\[-1\\]",
        ),
        ({"equal_lengths": axes(("ids", 1))}, "equal_lengths"),
        ({"equal_lengths": axes(("ids", 1), ("other", 1))}, "'other' has no dynamic dimension 1"),
        ({"equal_lengths": axes(("ids", 1), ("mask", 2))}, "'mask' has no dynamic dimension 2"),
    ],
)
def test_input_constraints__do_not_fit_the_signature__are_refused(
    constraints: dict[str, Any], where: str
) -> None:
    with pytest.raises(MlctlError, match=where) as caught:
        parse(constrained(**constraints))
    assert caught.value.code is ErrorCode.MANIFEST_INVALID


def test_input_constraints__missing_values__are_known_by_name() -> None:
    constraints = constrained(nullable=["age", "mask"], optional=["age"])
    manifest = parse_manifest(json.dumps(constraints).encode())
    assert manifest.missing == MissingValues(frozenset({"age", "mask"}), frozenset({"age"}))
    assert small_manifest().missing == MissingValues()


@pytest.mark.parametrize(
    ("eos_id", "folder", "problem"),
    [
        (9, "generate", None),
        (10, "generate", "eos_ids must be below vocabulary_size"),
        (9, "elsewhere", "need each other"),
    ],
)
def test_generation__with_its_files__ends_at_a_token_that_exists(
    eos_id: int, folder: str, problem: str | None
) -> None:
    generation = {
        "context_length": 8,
        "vocabulary_size": 10,
        "eos_ids": [eos_id],
        "chat_template": False,
    }
    file = {"path": f"{folder}/model.onnx", "size": 1, "sha256": "0" * 64}
    document = manifest_document() | {"generation": generation, "files": [file]}
    if problem is None:
        assert parse_manifest(json.dumps(document).encode()).generation is not None
    else:
        with pytest.raises(MlctlError, match=problem):
            parse(document)
