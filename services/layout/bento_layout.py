"""The layout of a Bento: where its bundles are, and the files that hold their digests.

A single model is in the folder `model`, with its digest in `model.digest`. Several models are each
in a folder `models/NAME`; `models.json` lists their digests and describes the pipeline if they form
one; its own digest is the Bento's. A bundle's manifest has the digest of every file but its own, so
these two files detect a manifest that was replaced as a whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mlctl.bundle.manifest import MANIFEST_NAME, Name, Sha256
from mlctl.bundle.tensors import Signature
from mlctl.bundle.verify import VerifiedBundle, verify
from mlctl.core.canonical import canonical_json
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.model.pipeline import Pipeline, make_pipeline, pipeline_signature

MODEL_FOLDER = "model"
MODELS_FOLDER = "models"
MODELS_FILE = "models.json"
MAX_MODELS = 64
_MAX_BYTES = 64 << 10


class ModelIdentity(Protocol):
    """What a bundle, the contents of a Bento with a pipeline, and what serves them have."""

    @property
    def name(self) -> str:
        """The model's name."""

    @property
    def digest(self) -> str:
        """The sha256 of all that decides its answers."""

    @property
    def signature(self) -> Signature:
        """Its inputs and outputs."""


class BentoManifest(BaseModel):
    """`models.json`: the name of a Bento with several models, the default model, and all digests.

    With a `pipeline` the models are its stages, and the Bento's name is the pipeline's.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: Name
    default: Name
    models: Annotated[dict[Name, Sha256], Field(min_length=2, max_length=MAX_MODELS)]
    pipeline: Pipeline | None = None

    def canonical(self) -> bytes:
        """Return the bytes of the file, which the digest covers."""
        return canonical_json(self.model_dump(exclude_none=True))

    @property
    def digest(self) -> str:
        """The hex sha256 of the canonical form: the identity of all models and their files."""
        return hashlib.sha256(self.canonical()).hexdigest()

    def label(self) -> str:
        """Return the Bento's label: NAME=DIGEST of each model, the default one first."""
        return " ".join(f"{name}={self.models[name]}" for name in self.names)

    @property
    def names(self) -> tuple[str, ...]:
        """The models' names: first the default, then the others sorted."""
        return (self.default, *sorted(self.models.keys() - {self.default}))


@dataclass(frozen=True, slots=True)
class BentoContents:
    """The verified bundles of one Bento, the default first; `bento_manifest` if it has several."""

    bundles: tuple[VerifiedBundle, ...]
    bento_manifest: BentoManifest | None = None

    @property
    def name(self) -> str:
        """The Bento's name: its model's, or the one in `models.json`."""
        return self.bundles[0].name if self.bento_manifest is None else self.bento_manifest.name

    @property
    def digest(self) -> str:
        """The digest of the only bundle, or of `models.json`."""
        return self.bundles[0].digest if self.bento_manifest is None else self.bento_manifest.digest

    @property
    def signature(self) -> Signature:
        """The inputs and outputs of the pipeline, or of the default model."""
        pipeline = None if self.bento_manifest is None else self.bento_manifest.pipeline
        if pipeline is None:
            return self.bundles[0].signature
        return pipeline_signature(pipeline, {each.name: each.signature for each in self.bundles})

    @property
    def models(self) -> tuple[VerifiedBundle | BentoContents, ...]:
        """The models that callers name, the default one first: a pipeline before its stages."""
        if self.bento_manifest is None or self.bento_manifest.pipeline is None:
            return self.bundles
        return (self, *self.bundles)

    def folders(self) -> Iterator[tuple[str, VerifiedBundle]]:
        """Yield each bundle with its folder, relative to the sources of the Bento."""
        for bundle in self.bundles:
            single = self.bento_manifest is None
            yield MODEL_FOLDER if single else _folder(bundle.name), bundle

    def digest_files(self) -> dict[str, bytes]:
        """Return the files that hold the digests, by name."""
        if self.bento_manifest is not None:
            return {MODELS_FILE: self.bento_manifest.canonical()}
        return {f"{MODEL_FOLDER}.digest": self.digest.encode()}


def combine_bundles(
    bundles: Iterable[VerifiedBundle], name: str | None = None, maps: Sequence[str] | None = None
) -> BentoContents:
    """Combine bundles into one Bento; several need a `name`, a single one must not have one.

    With `maps` (which may be empty) the bundles are the stages of a pipeline, see `make_pipeline`;
    its name defaults to theirs joined by "-". INVALID_INPUT for models with equal names, a `name`
    that is a model's, or stages that do not fit each other.
    """
    found = tuple(bundles)
    names = [bundle.manifest.name for bundle in found]
    if len(found) == 1:
        if name not in (None, names[0]):
            raise _invalid(
                f"a Bento with one model has the model's name: {names[0]}", "Leave --name out."
            )
        return BentoContents(found)
    if maps is not None and name is None:
        name = "-".join(names)
    if name is None:
        raise _invalid(f"a Bento of the models {', '.join(names)} needs a name", "Add --name NAME.")
    if len(set(names)) < len(names) or name in names:
        raise _invalid(
            f"the names {', '.join([name, *names])} are not all different",
            "Models in one Bento need different names, and the Bento needs another one.",
        )
    digests = {bundle.manifest.name: bundle.digest for bundle in found}
    signatures = {bundle.manifest.name: bundle.manifest.signature for bundle in found}
    pipeline = None if maps is None else make_pipeline(signatures, maps)
    try:
        manifest = BentoManifest(name=name, default=names[0], models=digests, pipeline=pipeline)
    except ValidationError as error:
        raise _invalid(
            f"these models cannot be one Bento: {_problem(error)}",
            "A name has up to 63 lower-case letters, digits, '.', '_' and '-'.",
        ) from error
    ordered = sorted(found, key=lambda each: manifest.names.index(each.manifest.name))
    return BentoContents(tuple(ordered), manifest)


def read_contents(source: Path) -> BentoContents:
    """Verify all bundles of the Bento whose sources are in the folder `source`.

    MANIFEST_INVALID if there are none, DIGEST_MISMATCH if one has another digest than the Bento
    lists.
    """
    manifest = read_bento_manifest(source)
    if manifest is None:
        root = source / MODEL_FOLDER
        return BentoContents((verify(root, _recorded_digest(root)),))
    folders = source / MODELS_FOLDER
    present = {path.name for path in folders.iterdir()} if folders.is_dir() else set[str]()
    if unlisted := sorted(present - manifest.models.keys()):
        raise MlctlError(ErrorCode.FILE_UNLISTED, f"model {unlisted[0]!r} is not in {MODELS_FILE}")
    bundles = []
    for name in manifest.names:
        bundle = verify(source / _folder(name), manifest.models[name])
        if bundle.manifest.name != name:
            raise _damaged(f"the folder of {name!r} holds the bundle of {bundle.manifest.name!r}")
        bundles.append(bundle)
    if manifest.pipeline is not None:
        _check_pipeline(manifest.pipeline, bundles)
    return BentoContents(tuple(bundles), manifest)


def read_bento_manifest(source: Path) -> BentoManifest | None:
    """Read `models.json` in the folder `source`; None if there is none, MANIFEST_INVALID if bad."""
    path = source / MODELS_FILE
    if not path.is_file():
        return None
    with path.open("rb") as file:
        content = file.read(_MAX_BYTES + 1)
    try:
        found = BentoManifest.model_validate_json(content[:_MAX_BYTES])
    except ValidationError as error:
        raise _damaged(_problem(error)) from error
    if found.canonical() != content:
        raise _damaged("it is not in canonical form")
    if found.default not in found.models or found.name in found.models:
        raise _damaged("its names do not fit each other")
    return found


def model_folder(source: Path, name: str | None = None) -> Path:
    """Return the folder of the model `name`, or of the default one, in a Bento's sources.

    MODEL_NOT_FOUND if the Bento has no such model. A Bento that mlctl did not build has no such
    folder.
    """
    manifest = read_bento_manifest(source)
    if manifest is None:
        return source / MODEL_FOLDER
    if name is not None and name not in manifest.models:
        raise MlctlError(
            ErrorCode.MODEL_NOT_FOUND,
            f"the Bento has no model {name!r}; it has {', '.join(manifest.names)}",
        )
    return source / _folder(name or manifest.default)


def _check_pipeline(pipeline: Pipeline, bundles: Iterable[VerifiedBundle]) -> None:
    try:
        pipeline_signature(pipeline, {each.name: each.signature for each in bundles})
    except MlctlError as error:
        raise _damaged(error.message) from error


def _recorded_digest(root: Path) -> str | None:
    path = digest_file(root)
    if not path.is_file():
        return None
    return path.read_text(encoding="utf-8", errors="backslashreplace").removesuffix("\n")


def digest_file(root: Path) -> Path:
    """Return the path of the file with the digest that the bundle in `root` must have."""
    return root.with_name(f"{root.name}.digest")


def is_bundle(root: Path) -> bool:
    """Return whether `root` holds a bundle, verified or not."""
    return (root / MANIFEST_NAME).is_file()


def _folder(name: str) -> str:
    return f"{MODELS_FOLDER}/{name}"


def _problem(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else str(first["msg"])


def _damaged(reason: str) -> MlctlError:
    return MlctlError(ErrorCode.MANIFEST_INVALID, f"{MODELS_FILE}: {reason}")


def _invalid(message: str, hint: str) -> MlctlError:
    return MlctlError(ErrorCode.INVALID_INPUT, message, hint)
