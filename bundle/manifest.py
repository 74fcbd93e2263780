"""The manifest (schema version 1): a bundle's model, its origin, its evidence and its files.

Its canonical form, and so the bundle's digest, does not depend on key order, whitespace or the
platform: sorted keys, no spaces, UTF-8, no NaN or infinity.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    ValidationError,
    model_validator,
)

from mlctl.bundle.tensors import (
    DYNAMIC,
    NULLABLE_DATATYPES,
    Datatype,
    MissingValues,
    Signature,
    TensorSpec,
)
from mlctl.core.canonical import canonical_json
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.paths import check_relative

SCHEMA_VERSION = 1
MANIFEST_NAME = "manifest.json"
MODEL_NAME = "model.onnx"
GOLDEN_NAME = "golden.npz"
EVIDENCE_NAME = "evidence.json"
TRANSFORM_FOLDER = "transform"
TRANSFORM_NAME = f"{TRANSFORM_FOLDER}/transform.py"
TRANSFORM_REQUIREMENTS = f"{TRANSFORM_FOLDER}/requirements.txt"
GENERATION_FOLDER = "generate"
MAX_MANIFEST_BYTES = 4 << 20
_OPTIONAL_BATCHING = (
    *("measure_larger", "pad", "max_wait_ms"),
    *("max_queue_rows", "max_queue_ms", "max_length", "max_body_bytes"),
)

_EXCLUDED_VALUES = ("present", "nonzero", "limits", "categories", "forbidden_characters")
_FLOATS = frozenset({Datatype.FP16, Datatype.FP32, Datatype.FP64})

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Name = Annotated[str, Field(pattern=r"^[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?$")]
PositiveInt = Annotated[int, Field(ge=1)]
NonNegative = Annotated[FiniteFloat, Field(ge=0)]


def _relative_path(name: str) -> str:
    try:
        return check_relative(name)
    except MlctlError as error:
        raise ValueError(error.message) from error


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SourceVersion(_Value):
    """The registered version that the bundle was made from; `sha256` covers its artifacts."""

    uri: Annotated[str, Field(min_length=1, max_length=2048)]
    version: Annotated[str, Field(min_length=1, max_length=64)]
    run_id: Annotated[str, Field(max_length=64)]
    sha256: Sha256
    pickle_allowed: bool = False


class VariantInfo(_Value):
    """The recipe that made the model file, and the runtime that it is for."""

    recipe: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
    precision: Literal["fp32", "fp16", "int8", "int4"]
    target: Literal["cpu", "cuda", "tensorrt"]
    opset: PositiveInt


class Batching(_Value):
    """Batching policy of the model. A model with dependent rows is never batched.

    With `measure_larger` a server may time larger batches than `max_rows` at its start and use
    them. `pad` maps inputs to the value that pads their second, dynamic dimension, so that
    variable-length sequences share a batch. The others are the model's values of the server's
    settings with these names, which override them.
    """

    max_rows: PositiveInt
    buckets: Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
    row_independent: bool
    measure_larger: Literal[True] | None = None
    pad: dict[str, int | FiniteFloat] | None = None
    max_wait_ms: NonNegative | None = None
    max_queue_rows: PositiveInt | None = None
    max_queue_ms: NonNegative | None = None
    max_length: PositiveInt | None = None
    max_body_bytes: PositiveInt | None = None

    @model_validator(mode="after")
    def _buckets_ascend_to_max_rows(self) -> Self:
        if list(self.buckets) != sorted(set(self.buckets)):
            raise ValueError("buckets must ascend without repeats")
        if self.buckets[-1] != self.max_rows:
            raise ValueError("the last bucket must be max_rows")
        return self


class Evidence(_Value):
    """The measured evidence for the variant, compared with the source model.

    `max_abs_error` and `relative_l2` compare outputs with the source model's on
    held-out rows; `agreement` is the share of rows with the same top class. `score` is
    the task `metric` on labelled rows, `drop` its decrease against the source model, and
    `drop_high` the upper bound of the confidence interval of `drop` (null where not applicable).
    """

    rows: PositiveInt
    metric: Annotated[str, Field(max_length=256)] | None = None
    score: FiniteFloat | None = None
    drop: FiniteFloat | None = None
    drop_high: FiniteFloat | None = None
    agreement: FiniteFloat | None = None
    max_abs_error: NonNegative
    relative_l2: NonNegative


class TransformSpec(_Value):
    """User code around the model; the model file itself has `model_signature`."""

    model_signature: Signature


class Axis(_Value):
    """One dimension of an input; the first is axis 0."""

    input: Annotated[str, Field(max_length=256)]
    axis: Annotated[int, Field(ge=0)]


Category = str | int | FiniteFloat
_InputName = Annotated[str, Field(max_length=256)]


class InputConstraints(_Value):
    """Requirements on inputs beyond the signature, checked before the model runs.

    `ranges` are the minimum and maximum value of integer inputs, both inclusive. The dimensions of
    each group in `equal_lengths` must have equal sizes in a request. Values of inputs in `nullable`
    may be missing, and inputs in `optional` may be absent; see `MissingValues`.

    The others exclude kinds of values for which the model is not proved to answer as its source
    does: inputs in `present` hold no NaN and no empty text, those in `nonzero` no 0; `limits` are
    the minimum and maximum of float inputs, both inclusive; an input of `categories` has one of
    these values, empty text aside; no text of an input in `forbidden_characters` has one of them.
    All of these and `ranges` may name a column of a matrix [rows, columns]: `x[3]`.
    """

    ranges: dict[str, tuple[int, int]] = {}
    equal_lengths: tuple[Annotated[tuple[Axis, ...], Field(min_length=2)], ...] = ()
    nullable: tuple[_InputName, ...] = ()
    optional: tuple[_InputName, ...] = ()
    present: tuple[_InputName, ...] = ()
    nonzero: tuple[_InputName, ...] = ()
    limits: dict[str, tuple[FiniteFloat, FiniteFloat]] = {}
    categories: dict[str, tuple[Category, ...]] = {}
    forbidden_characters: dict[str, Annotated[str, Field(min_length=1)]] = {}


_COLUMN = re.compile(r"(.+)\[(0|[1-9]\d*)\]", re.DOTALL)


def split_column(name: str, inputs: Container[str]) -> tuple[str, int | None]:
    """Return the input that a constraint names, and the column of its matrix if it names one."""
    match = None if name in inputs else _COLUMN.fullmatch(name)
    return (name, None) if match is None else (match[1], int(match[2]))


class Generation(_Value):
    """A causal language model; the folder generate/ has its files in onnxruntime-genai's layout.

    `context_length` is the maximum number of tokens of a prompt with its answer. Generation ends at
    any of `eos_ids`, each below `vocabulary_size`. `chat_template` says that the tokenizer turns
    a list of messages into a prompt.
    """

    context_length: PositiveInt
    vocabulary_size: PositiveInt
    eos_ids: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)]
    chat_template: bool


class FileEntry(_Value):
    """One file of the bundle, by its path relative to the manifest."""

    path: Annotated[str, AfterValidator(_relative_path)]
    size: Annotated[int, Field(ge=0)]
    sha256: Sha256


class Manifest(_Value):
    """The whole manifest. `files` is sorted by path and never lists the manifest itself.

    Clients see `signature`. With a `transform` it has the inputs and outputs of the code in the
    folder transform/, which may differ from the model's. With `generation` the model file is
    generate/model.onnx, and `signature` is a prompt and the text that follows it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", title="mlctl bundle manifest")

    schema_version: Literal[1]
    name: Name
    source: SourceVersion
    signature: Signature
    input_constraints: InputConstraints | None = None
    transform: TransformSpec | None = None
    generation: Generation | None = None
    variant: VariantInfo
    batching: Batching
    evidence: Evidence
    files: tuple[FileEntry, ...] = ()

    @model_validator(mode="after")
    def _files_are_sorted_and_unique(self) -> Self:
        paths = [entry.path for entry in self.files]
        if paths != sorted(set(paths)):
            raise ValueError("files must be sorted by path without repeats")
        if MANIFEST_NAME in paths:
            raise ValueError(f"files must not list {MANIFEST_NAME}")
        return self

    @model_validator(mode="after")
    def _transform_is_declared_and_listed(self) -> Self:
        listed = any(entry.path == TRANSFORM_NAME for entry in self.files)
        if self.files and listed != (self.transform is not None):
            raise ValueError(f"the field transform and the file {TRANSFORM_NAME} need each other")
        if self.signature.batched != self.model_signature.batched:
            raise ValueError("signature and transform.model_signature: only one has a batch size")
        return self

    @model_validator(mode="after")
    def _generation_has_its_files(self) -> Self:
        found = self.generation
        listed = any(entry.path.startswith(f"{GENERATION_FOLDER}/") for entry in self.files)
        if self.files and listed != (found is not None):
            raise ValueError(f"the field generation and {GENERATION_FOLDER}/ need each other")
        if found is not None and max(found.eos_ids) >= found.vocabulary_size:
            raise ValueError("generation.eos_ids must be below vocabulary_size")
        return self

    @model_validator(mode="after")
    def _padded_inputs_have_a_length(self) -> Self:
        shapes = {spec.name: spec.shape for spec in self.signature.inputs}
        for name in self.batching.pad or {}:
            if shapes.get(name, ())[:2] != (DYNAMIC, DYNAMIC):
                raise ValueError(f"batching.pad: {name!r} is not an input with shape [-1, -1, ...]")
        return self

    @model_validator(mode="after")
    def _constraints_fit_the_signature(self) -> Self:
        constraints = self.input_constraints or InputConstraints()
        specs = {spec.name: spec for spec in self.signature.inputs}
        for name, (low, high) in constraints.ranges.items():
            spec = _constrained(name, specs)
            if spec is None or not spec.dtype.is_integer or low > high:
                raise ValueError(
                    f"input_constraints.ranges: {name!r} is no integer input from {low} to {high}"
                )
        for name in constraints.nullable:
            if name not in specs or specs[name].dtype not in NULLABLE_DATATYPES:
                raise ValueError(
                    f"input_constraints.nullable: {name!r} is no input of FP32, FP64 or BYTES"
                )
        for name in constraints.optional:
            if name not in constraints.nullable or specs[name].shape != (DYNAMIC,):
                raise ValueError(
                    f"input_constraints.optional: {name!r} is no nullable input of shape [-1]"
                )
        for each in (axis for group in constraints.equal_lengths for axis in group):
            shape = specs[each.input].shape if each.input in specs else ()
            if shape[each.axis : each.axis + 1] != (DYNAMIC,):
                raise ValueError(
                    f"input_constraints.equal_lengths: {each.input!r} has no dynamic dimension "
                    f"{each.axis}"
                )
        return self

    @model_validator(mode="after")
    def _excluded_values_fit_the_signature(self) -> Self:
        specs = {spec.name: spec for spec in self.signature.inputs}
        for field, names, fits in _excluded_values(self.input_constraints or InputConstraints()):
            for name in names:
                spec = _constrained(name, specs)
                if spec is None or not fits(spec.dtype):
                    raise ValueError(f"input_constraints.{field}: {name!r} is no input that fits")
        return self

    @property
    def missing(self) -> MissingValues:
        """The inputs whose values may be missing."""
        found = self.input_constraints or InputConstraints()
        return MissingValues(frozenset(found.nullable), frozenset(found.optional))

    @property
    def model_signature(self) -> Signature:
        """The inputs and outputs of the model file: `signature`, unless there is a transform."""
        return self.signature if self.transform is None else self.transform.model_signature

    def canonical(self) -> bytes:
        """Return the bytes of the file, which the digest covers."""
        document = self.model_dump()
        # Absent optional fields are omitted, so that a new field does not change old digests.
        for name in ("transform", "generation", "input_constraints"):
            if document[name] is None:
                del document[name]
        for name in _EXCLUDED_VALUES:
            constraints = document.get("input_constraints", {})
            if not constraints.get(name):
                constraints.pop(name, None)
        for name in _OPTIONAL_BATCHING:
            if document["batching"][name] is None:
                del document["batching"][name]
        return canonical_json(document)

    @property
    def digest(self) -> str:
        """The bundle's identity: the hex sha256 of the canonical manifest."""
        return hashlib.sha256(self.canonical()).hexdigest()


def _constrained(name: str, specs: Mapping[str, TensorSpec]) -> TensorSpec | None:
    """Return the input that a constraint names, None if there is none with that column."""
    column, feature = split_column(name, specs)
    spec = specs.get(column)
    if spec is None or feature is None:
        return spec
    is_matrix = len(spec.shape) == 2 and spec.shape[1] != DYNAMIC
    return spec if is_matrix and feature < spec.shape[1] else None


def _excluded_values(
    found: InputConstraints,
) -> Iterator[tuple[str, Iterable[str], Callable[[Datatype], bool]]]:
    """Yield the constraints on values: the field, the names of inputs, and the types that fit."""
    yield "present", found.present, lambda dtype: dtype in NULLABLE_DATATYPES
    yield "nonzero", found.nonzero, lambda dtype: dtype is not Datatype.BYTES
    yield "limits", found.limits, lambda dtype: dtype in _FLOATS
    yield "categories", found.categories, lambda dtype: dtype is not Datatype.BF16
    yield (
        "forbidden_characters",
        found.forbidden_characters,
        lambda dtype: dtype is Datatype.BYTES,
    )


def parse_manifest(content: bytes) -> Manifest:
    """Parse a manifest strictly; MANIFEST_INVALID or MANIFEST_VERSION_UNKNOWN."""
    if len(content) > MAX_MANIFEST_BYTES:
        raise _invalid(f"it is larger than {MAX_MANIFEST_BYTES} bytes")
    try:
        document = json.loads(content, object_pairs_hook=_unique_keys, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise _invalid(f"it is not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise _invalid("it is not a JSON object")
    version = document.get("schema_version")
    if type(version) is not int or version != SCHEMA_VERSION:
        raise MlctlError(
            ErrorCode.MANIFEST_VERSION_UNKNOWN,
            f"{MANIFEST_NAME} has schema version {version!r}; this mlctl reads {SCHEMA_VERSION}",
        )
    try:
        return Manifest.model_validate_json(content, strict=True)
    except ValidationError as error:
        raise _invalid(_first_problem(error)) from error


def manifest_json_schema() -> dict[str, Any]:
    """Return the JSON Schema of the manifest, published in docs/manifest.schema.json."""
    schema = Manifest.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _invalid(reason: str) -> MlctlError:
    return MlctlError(ErrorCode.MANIFEST_INVALID, f"{MANIFEST_NAME}: {reason}")


def _first_problem(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"]) or "(whole document)"
    more = error.error_count() - 1
    return f"{where}: {first['msg']}" + (f" (and {more} more)" if more else "")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("an object has the same key twice")
    return document


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not allowed")
