"""A model registry as mlctl uses it: values, and the protocol that `mlflow_catalog` implements."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from mlctl.bundle.tensors import (
    NO_MISSING,
    NULLABLE_DATATYPES,
    Datatype,
    MissingValues,
    Signature,
)
from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.canonical import canonical_json
from mlctl.core.files import sha256_file
from mlctl.core.paths import reject_link

CHAMPION = "champion"
DIGEST_TAG = "mlctl.digest"
RECIPE_TAG = "mlctl.recipe"
SOURCE_URI_TAG = "mlctl.source_uri"
SOURCE_VERSION_TAG = "mlctl.source_version"


class ModelFormat(StrEnum):
    """The library that a registered model belongs to: the name of its MLflow flavor."""

    ONNX = "onnx"
    PYTORCH = "pytorch"
    SKLEARN = "sklearn"
    XGBOOST = "xgboost"
    LIGHTGBM = "lightgbm"
    CATBOOST = "catboost"
    TRANSFORMERS = "transformers"

    @property
    def is_estimator(self) -> bool:
        """Whether it is an estimator with scikit-learn's interface, fed with rows of a table."""
        return self in (
            ModelFormat.SKLEARN,
            ModelFormat.XGBOOST,
            ModelFormat.LIGHTGBM,
            ModelFormat.CATBOOST,
        )


@dataclass(frozen=True, slots=True)
class SourceModel:
    """One registered version with its artifacts on this machine.

    `sha256` covers the relative path and content of every file under `artifacts`;
    `model_path` is the model inside it (a directory that MLflow loads, or a file). `columns` says
    that the inputs are the columns of a table, of which a caller may leave out those in `optional`.
    `generates` says that it is a causal language model: a prompt in, text out.
    The outputs of an estimator follow from the estimator, not from what MLflow
    recorded: `mlctl.optimize.inputs.estimators` fills them in.
    """

    name: str
    version: str
    uri: str
    run_id: str
    format: ModelFormat
    signature: Signature
    artifacts: Path
    model_path: Path
    sha256: str
    pickle_allowed: bool = False
    columns: bool = False
    optional: frozenset[str] = frozenset()
    generates: bool = False

    @property
    def missing(self) -> MissingValues:
        """The inputs whose values may be missing: estimators have their own rule for NaN.

        Empty text is missing only in a column that the signature calls optional.
        """
        if not self.format.is_estimator:
            return NO_MISSING
        nullable = frozenset(
            spec.name
            for spec in self.signature.inputs
            if spec.dtype in NULLABLE_DATATYPES
            and (spec.dtype is not Datatype.BYTES or spec.name in self.optional)
        )
        return MissingValues(nullable, nullable & self.optional if self.columns else frozenset())


@dataclass(frozen=True, slots=True)
class ImportedModel:
    """A version that was registered from a file or folder."""

    name: str
    version: str
    uri: str
    signature: Signature


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """An optimized version in the registry; `digest` is that of its bundle."""

    name: str
    version: str
    digest: str
    uri: str
    run_id: str
    source_uri: str
    source_version: str


@dataclass(frozen=True, slots=True)
class Selection:
    """The optimized version that a name selects, and `why`, for the user."""

    published: PublishedModel
    why: str


@dataclass(frozen=True, slots=True)
class PublishReport:
    """The records beside the bundle in the registry: verdict, parameters, numbers.

    `files` are attached to the run under their names.
    """

    verdict: str
    params: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One line of `mlctl models`; `digest` and `source_uri` only on optimized versions."""

    name: str
    version: str
    aliases: tuple[str, ...]
    digest: str | None
    source_uri: str | None


class Catalog(Protocol):
    """The registry of source models and optimized versions."""

    def resolve(self, text: str, *, allow_pickle: bool = False) -> SourceModel:
        """Return the version `text` names; MODEL_NOT_FOUND, PICKLE_REJECTED, UNSUPPORTED_MODEL."""
        ...

    def publish(
        self, bundle: VerifiedBundle, source: SourceModel, report: PublishReport
    ) -> PublishedModel:
        """Register `bundle` as an optimized version of `source`; the same digest only once."""
        ...

    def find_optimized(self, text: str) -> PublishedModel:
        """Return the optimized version `text` names; MODEL_NOT_FOUND."""
        ...

    def fetch_bundle(self, published: PublishedModel, destination: Path) -> VerifiedBundle:
        """Copy a version's verified bundle to `destination`, which is missing or empty."""
        ...


def artifacts_sha256(root: Path) -> str:
    """Return the hex sha256 over path and content of all files under `root`; reject links."""
    listing = []
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        reject_link(path, name)
        if path.is_file():
            listing.append([name, sha256_file(path)])
    return hashlib.sha256(canonical_json(listing)).hexdigest()
