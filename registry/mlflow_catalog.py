"""MLflow as the model registry: implements the protocols of `mlctl.registry.catalog`.

Every artifact is copied out of the registry before it is read; a bundle is returned
only after its digest was verified against the registry's tag.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from mlctl.bundle.verify import VerifiedBundle, verify
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.files import exclusive, settle
from mlctl.core.home import state_dir
from mlctl.core.paths import check_relative
from mlctl.core.quiet import quiet
from mlctl.registry import lookup
from mlctl.registry.catalog import (
    CHAMPION,
    ImportedModel,
    ModelFormat,
    ModelRow,
    PublishedModel,
    PublishReport,
    Selection,
    SourceModel,
    artifacts_sha256,
)
from mlctl.registry.hugging_face import TextModelFolder, register_folder
from mlctl.registry.mlmodel import read_mlmodel
from mlctl.registry.names import OPTIMIZED_SUFFIX, ModelRef, optimized_name, parse_ref
from mlctl.registry.onnx_import import OnnxImport, register
from mlctl.registry.publish import BUNDLE_ARTIFACT, publish_bundle
from mlctl.registry.tracking import configure_tracking, registry_errors

# How to log a model again so that loading it runs no code.
_OR_ALLOW = ", or, if you trust its author, pass --allow-pickle (the manifest records it)."
_SAFE_FORMS = {
    ModelFormat.SKLEARN: (
        'Log it again with mlflow.sklearn.log_model(..., serialization_format="skops")' + _OR_ALLOW
    ),
    ModelFormat.XGBOOST: (
        'Log it again with mlflow.xgboost.log_model(..., model_format="ubj")' + _OR_ALLOW
    ),
    ModelFormat.LIGHTGBM: (
        'Log it again with mlflow.lightgbm.log_model(..., serialization_format="skops")' + _OR_ALLOW
    ),
    ModelFormat.TRANSFORMERS: (
        "Save its weights as safetensors with model.save_pretrained(FOLDER), and log it again."
    ),
}


class MlflowCatalog:
    """The registry that MLflow's tracking URI names; implements `Catalog`.

    Every method raises REGISTRY_UNAVAILABLE when the store fails.
    """

    def __init__(self) -> None:
        self._client: Any = None

    def resolve(self, text: str, *, allow_pickle: bool = False) -> SourceModel:
        """Find and fetch the version that `text` names (the newest if it names none).

        MODEL_NOT_FOUND lists similar names; PICKLE_REJECTED unless `allow_pickle`;
        UNSUPPORTED_MODEL for other flavors, for models without a tensor signature, and for
        optimized versions.
        """
        ref = parse_ref(text)
        if ref.name.endswith(OPTIMIZED_SUFFIX):
            raise MlctlError(
                ErrorCode.UNSUPPORTED_MODEL,
                f"{ref.name} holds optimized versions, which cannot be optimized again",
                f"Optimize its source: {ref.name.removesuffix(OPTIMIZED_SUFFIX)}.",
            )
        with quiet(), registry_errors():
            version = lookup.find_version(self._connected(), ref)
            uri = str(ModelRef(version.name, version=str(version.version)))
            artifacts, sha256 = self._fetch(version)
            stored = read_mlmodel(artifacts, uri)
        if stored.pickled and not allow_pickle:
            raise MlctlError(
                ErrorCode.PICKLE_REJECTED,
                f"{uri} is stored as a pickle or with its own code: loading it runs code",
                _SAFE_FORMS.get(stored.format),
            )
        return SourceModel(
            name=version.name,
            version=str(version.version),
            uri=uri,
            run_id=version.run_id or "",
            format=stored.format,
            signature=stored.signature,
            artifacts=artifacts,
            model_path=stored.path,
            sha256=sha256,
            pickle_allowed=stored.pickled,
            columns=stored.columns,
            optional=stored.optional,
            generates=stored.generates,
        )

    def import_onnx(self, read: OnnxImport) -> ImportedModel:
        """Register a graph that `read_import` read as the newest version of its name."""
        with quiet(), registry_errors():
            self._connected()
            return register(read)

    def import_text_model(self, folder: TextModelFolder) -> ImportedModel:
        """Register a folder that `read_folder` checked as the newest version of its name."""
        with quiet(), registry_errors():
            self._connected()
            return register_folder(folder)

    def publish(
        self, bundle: VerifiedBundle, source: SourceModel, report: PublishReport
    ) -> PublishedModel:
        """Register `bundle` with lineage to `source`, unless its digest is registered already.

        Processes with the same state directory take turns, so only one registers it.
        """
        lock = exclusive(state_dir("locks") / "publish")
        with lock, quiet(), registry_errors():
            return publish_bundle(self._connected(), bundle, source, report)

    def find_optimized(self, text: str) -> PublishedModel:
        """Return the optimized version for `text`.

        `digits`: the newest; `digits@alias`, `digits/3`: the newest made from that source
        version; `digits-optimized/2`, `digits-optimized@champion`: exactly that one.
        MODEL_NOT_FOUND hints at `mlctl optimize`.
        """
        return self.select_optimized(text).published

    def select_optimized(self, text: str, version: str | None = None) -> Selection:
        """Return `find_optimized` with the reason; `version` is one of the optimized model."""
        ref = parse_ref(text)
        if version is not None:
            if ref.version or ref.alias:
                raise MlctlError(
                    ErrorCode.INVALID_INPUT,
                    f"{text} names a version already, so version {version} cannot be chosen",
                    f"Name the model alone, or {optimized_name(ref.name)}/{version}.",
                )
            ref = parse_ref(f"{optimized_name(ref.name)}/{version}")
        with quiet(), registry_errors():
            return lookup.find_published(self._connected(), ref)

    def find_by_digest(self, digest: str) -> PublishedModel:
        with quiet(), registry_errors():
            found = lookup.find_digest(self._connected(), digest)
        if found is None:
            raise MlctlError(
                ErrorCode.MODEL_NOT_FOUND, f"no registered version has the digest {digest}"
            )
        return found

    def fetch_bundle(self, published: PublishedModel, destination: Path) -> VerifiedBundle:
        """Copy a version's verified bundle to `destination`, which is missing or empty.

        DIGEST_MISMATCH and the other verification errors leave nothing there.
        """
        destination.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=destination.parent) as scratch:
            with quiet(), registry_errors():
                self._connected()
                root = _download_bundle(published, Path(scratch))
            verified = verify(root, published.digest)
            root.rename(destination)
        return VerifiedBundle(destination, verified.manifest, verified.digest)

    def set_alias(self, name: str, alias: str, version: str) -> None:
        """Point `alias` of a registered model at `version`; idempotent."""
        ref = parse_ref(f"{name}/{version}")
        with quiet(), registry_errors():
            client = self._connected()
            lookup.find_version(client, ref)
            client.set_registered_model_alias(ref.name, alias, str(ref.version))

    def connect(self) -> None:
        """Load MLflow and query the registry once, which takes seconds. REGISTRY_UNAVAILABLE."""
        with quiet(), registry_errors():
            self._connected().search_registered_models(max_results=1)

    def write_champion(self, digest: str) -> PublishedModel:
        """Set @champion on the version with that digest and on its source version."""
        published = self.find_by_digest(digest)
        self.set_alias(published.name, CHAMPION, published.version)
        source = parse_ref(published.source_uri)
        self.set_alias(source.name, CHAMPION, published.source_version)
        return published

    def attach(self, published: PublishedModel, folder: Path, name: str) -> str:
        """Attach `folder` as `name` (a relative path) to the version's run; return its URI."""
        with quiet(), registry_errors():
            client = self._connected()
            client.log_artifacts(published.run_id, str(folder), check_relative(name))
        return f"runs:/{published.run_id}/{name}"

    def attached(self, published: PublishedModel, under: str) -> list[str]:
        """Return the sorted names of the folders in the folder `under` of the version's run."""
        with quiet(), registry_errors():
            found = self._connected().list_artifacts(published.run_id, check_relative(under))
        return sorted(Path(each.path).name for each in found if each.is_dir)

    def fetch_attached(self, published: PublishedModel, name: str, destination: Path) -> Path:
        """Copy an attached folder into `destination`; BENTO_NOT_FOUND if it does not exist."""
        parent, _, last = check_relative(name).rpartition("/")
        if last not in self.attached(published, parent):
            raise MlctlError(
                ErrorCode.BENTO_NOT_FOUND, f"the run {published.run_id} has no folder {name}"
            )
        with quiet(), registry_errors():
            client = self._connected()
            return Path(client.download_artifacts(published.run_id, name, str(destination)))

    def list_models(self) -> tuple[ModelRow, ...]:
        """Return every version of every model; names and tags are untrusted text."""
        with quiet(), registry_errors():
            return tuple(lookup.rows(self._connected()))

    def _connected(self) -> Any:
        if self._client is None:
            configure_tracking()
            from mlflow import MlflowClient

            self._client = MlflowClient()
        return self._client

    def _fetch(self, version: Any) -> tuple[Path, str]:
        """Copy the version's artifacts to a directory named by their sha256; return both."""
        from mlflow.artifacts import download_artifacts

        # The models:/NAME/N form would add a file of MLflow's.
        location = self._connected().get_model_version_download_uri(version.name, version.version)
        store = state_dir("cache", "sources")
        with tempfile.TemporaryDirectory(dir=store) as scratch:
            found = Path(download_artifacts(artifact_uri=location, dst_path=scratch))
            sha256 = artifacts_sha256(found)
            target = store / sha256
            settle(found, target, lambda there: artifacts_sha256(there) == sha256)
        return target, sha256


def _download_bundle(published: PublishedModel, scratch: Path) -> Path:
    from mlflow.artifacts import download_artifacts

    return Path(
        download_artifacts(
            run_id=published.run_id, artifact_path=BUNDLE_ARTIFACT, dst_path=str(scratch)
        )
    )
