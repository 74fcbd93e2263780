"""Where a Bento has its bundles, and what it says of them.

One model is in the folder `model`, with its digest in `model.digest`. Several are each in a
folder `models/NAME`; `models.json` names them with their digests, and says how they are put
together if they are a pipeline; its own digest is the Bento's. The manifest of a bundle names
the digest of every file but its own, so both files notice a manifest that was changed as a
whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bundle.errors import ErrorCode, MlctlError
from bundle.manifest import MANIFEST_NAME, Name, Sha256, canonical_json
from bundle.verify import VerifiedBundle, verify
from services.runtime.pipeline import Pipeline, join, plan

MODEL_FOLDER = "model"
MODELS_FOLDER = "models"
MODELS_FILE = "models.json"
MAX_MODELS = 64
_MAX_BYTES = 64 << 10


class BentoManifest(BaseModel):
    """Several models that are one Bento: its name, the default model, and each one's digest.

    With a `pipeline` they are its stages, and the Bento's name is that of the whole.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: Name
    default: Name
    models: Annotated[dict[Name, Sha256], Field(min_length=2, max_length=MAX_MODELS)]
    pipeline: Pipeline | None = None

    def canonical(self) -> bytes:
        """The bytes that are written, and that the digest is taken of."""
        return canonical_json(self.model_dump(exclude_none=True))

    @property
    def digest(self) -> str:
        """The hex sha256 of the canonical form: it stands for all models and their bytes."""
        return hashlib.sha256(self.canonical()).hexdigest()

    def told(self) -> str:
        """NAME=DIGEST of each, the default first, as a label has it."""
        return " ".join(f"{name}={self.models[name]}" for name in self.names)

    @property
    def names(self) -> tuple[str, ...]:
        """The models' names: first the default, then the others sorted."""
        return (self.default, *sorted(self.models.keys() - {self.default}))


@dataclass(frozen=True, slots=True)
class BentoContents:
    """The verified bundles of one Bento, the default first; `together` if there are several."""

    bundles: tuple[VerifiedBundle, ...]
    together: BentoManifest | None = None

    @property
    def name(self) -> str:
        """The Bento's name: that of its model, or of all together."""
        return self.bundles[0].manifest.name if self.together is None else self.together.name

    @property
    def digest(self) -> str:
        """That of the one bundle, or of all together."""
        return self.bundles[0].digest if self.together is None else self.together.digest

    def folders(self) -> Iterator[tuple[str, VerifiedBundle]]:
        """The folder of each bundle, relative to the sources of the Bento."""
        for bundle in self.bundles:
            alone = MODEL_FOLDER
            yield (alone if self.together is None else _folder(bundle.manifest.name)), bundle

    def notes(self) -> dict[str, bytes]:
        """The files that tell the digests, by their names."""
        if self.together is not None:
            return {MODELS_FILE: self.together.canonical()}
        return {f"{MODEL_FOLDER}.digest": self.digest.encode()}


def pack(
    bundles: Iterable[VerifiedBundle], name: str | None = None, maps: Sequence[str] | None = None
) -> BentoContents:
    """Bundles as one Bento named `name`, which several need and one may not have.

    With `maps`, which may be empty, they are the stages of a pipeline, see `pipeline.plan`,
    and without a name it is made of theirs.
    INVALID_INPUT for models of the same name, a name that is one of theirs, or stages that do
    not fit each other.
    """
    found = tuple(bundles)
    names = [bundle.manifest.name for bundle in found]
    if len(found) == 1:
        if name not in (None, names[0]):
            raise _invalid(f"the Bento of one model has its name: {names[0]}", "Leave --name out.")
        return BentoContents(found)
    if maps is not None and name is None:
        name = "-".join(names)
    if name is None:
        raise _invalid(
            f"a Bento of the models {', '.join(names)} needs a name", "Give it with --name NAME."
        )
    if len(set(names)) < len(names) or name in names:
        raise _invalid(
            f"the names {', '.join([name, *names])} are not all different",
            "Models in one Bento, and the Bento, are told apart by their names.",
        )
    digests = {bundle.manifest.name: bundle.digest for bundle in found}
    signatures = {bundle.manifest.name: bundle.manifest.signature for bundle in found}
    pipeline = None if maps is None else plan(signatures, maps)
    try:
        together = BentoManifest(name=name, default=names[0], models=digests, pipeline=pipeline)
    except ValidationError as error:
        raise _invalid(
            f"these models cannot be one Bento: {_problem(error)}",
            "A name has small letters, digits, '.', '_' and '-', at most 63 of them.",
        ) from error
    ordered = sorted(found, key=lambda each: together.names.index(each.manifest.name))
    return BentoContents(tuple(ordered), together)


def unpack(source: Path) -> BentoContents:
    """Verify all bundles of the Bento whose sources are in the folder `source`.

    MANIFEST_INVALID if there are none, DIGEST_MISMATCH if one is not what the Bento names.
    """
    together = read_together(source)
    if together is None:
        root = source / MODEL_FOLDER
        return BentoContents((verify(root, _noted_digest(root)),))
    folders = source / MODELS_FOLDER
    present = {path.name for path in folders.iterdir()} if folders.is_dir() else set[str]()
    if unlisted := sorted(present - together.models.keys()):
        raise MlctlError(ErrorCode.FILE_UNLISTED, f"model {unlisted[0]!r} is not in {MODELS_FILE}")
    bundles = []
    for name in together.names:
        bundle = verify(source / _folder(name), together.models[name])
        if bundle.manifest.name != name:
            raise _damaged(f"the bundle of {name!r} is that of {bundle.manifest.name!r}")
        bundles.append(bundle)
    if together.pipeline is not None:
        _check_pipeline(together.pipeline, bundles)
    return BentoContents(tuple(bundles), together)


def read_together(source: Path) -> BentoManifest | None:
    """What `models.json` in the folder `source` says; None if there is none."""
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
    """The folder of the model `name`, or of the default one, in a Bento's sources.

    MODEL_NOT_FOUND if the Bento has no such model. A Bento that is not ours has no such folder.
    """
    together = read_together(source)
    if together is None:
        return source / MODEL_FOLDER
    if name is not None and name not in together.models:
        raise MlctlError(
            ErrorCode.MODEL_NOT_FOUND,
            f"the Bento has no model {name!r}; it has {', '.join(together.names)}",
        )
    return source / _folder(name or together.default)


def labelled_digest(source: Path, label: str | None, name: str = "") -> str | None:
    """The digest of the model `name` (empty: the default) in a Bento whose label is `label`.

    DIGEST_MISMATCH if the Bento's models are not the ones of its label; None without a label.
    """
    together = read_together(source)
    if together is None or label is None:
        return label
    if together.digest != label:
        raise MlctlError(
            ErrorCode.DIGEST_MISMATCH,
            f"the digest of the Bento's models is {together.digest}, expected {label}",
        )
    return together.models[name or together.default]


def _check_pipeline(pipeline: Pipeline, bundles: Iterable[VerifiedBundle]) -> None:
    try:
        join(pipeline, {each.manifest.name: each.manifest.signature for each in bundles})
    except MlctlError as error:
        raise _damaged(error.message) from error


def _noted_digest(root: Path) -> str | None:
    path = digest_file(root)
    if not path.is_file():
        return None
    return path.read_text(encoding="utf-8", errors="backslashreplace").removesuffix("\n")


def digest_file(root: Path) -> Path:
    """Where the digest is written that the one bundle in folder `root` must have."""
    return root.with_name(f"{root.name}.digest")


def is_bundle(root: Path) -> bool:
    """Whether there is a bundle at `root`, verified or not."""
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
