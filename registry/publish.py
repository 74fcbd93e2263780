"""Publish an optimized bundle to MLflow: a run with lineage, evidence, and a new version.

The version is created last and together with its tags, so a crash before that leaves a
run but no version, and the next attempt starts over.
"""

from __future__ import annotations

import contextlib
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mlctl.bundle.manifest import MODEL_NAME
from mlctl.bundle.tensors import Signature, TensorSpec
from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.files import write_atomic
from mlctl.core.home import state_dir
from mlctl.core.packages import RUNTIMES, installed_version
from mlctl.core.paths import check_relative
from mlctl.registry.catalog import (
    DIGEST_TAG,
    RECIPE_TAG,
    SOURCE_URI_TAG,
    SOURCE_VERSION_TAG,
    PublishedModel,
    PublishReport,
    SourceModel,
)
from mlctl.registry.lookup import as_published, find_digest
from mlctl.registry.names import optimized_name
from mlctl.registry.tracking import EXPERIMENT

BUNDLE_ARTIFACT = "bundle"
PUBLISHER_TAG = "mlctl.publisher"


def publish_bundle(
    client: Any, bundle: VerifiedBundle, source: SourceModel, report: PublishReport
) -> PublishedModel:
    """Register `bundle` under the optimized name of `source`; see `MlflowCatalog.publish`.

    Callers hold the publishing lock of the state directory.
    """
    publisher = _publisher()
    _kill_interrupted(client, publisher)
    name = optimized_name(source.name)
    existing = find_digest(client, bundle.digest, name)
    if existing is not None:
        return existing
    import mlflow

    tags = _tags(bundle, source, report.verdict)
    with _run(source, {**tags, PUBLISHER_TAG: publisher}) as run:
        mlflow.log_params({**report.params, "recipe": bundle.manifest.variant.recipe})
        mlflow.log_artifacts(str(bundle.root), BUNDLE_ARTIFACT)
        _log_files(report)
        model_id = location = None
        if bundle.manifest.generation is None:
            model = _log_model(bundle)
            model_id, location = model.model_id, model.model_uri
        mlflow.log_metrics(dict(report.metrics), model_id=model_id)
    if location is None:
        # MLflow has no flavor for the files of a language model: its version is the bundle.
        registered = _register_bundle(client, name, run, tags)
    else:
        registered = mlflow.register_model(location, name, tags=tags)
    found = client.get_model_version(name, str(registered.version))
    assert found.run_id == run.info.run_id
    return as_published(found)


def _log_model(bundle: VerifiedBundle) -> Any:
    import onnx

    return log_onnx(
        onnx.load(str(bundle.path(MODEL_NAME))),
        bundle.manifest.model_signature,
        metadata={DIGEST_TAG: bundle.digest},
    )


def _register_bundle(client: Any, name: str, run: Any, tags: Mapping[str, str]) -> Any:
    """Register the run's folder of the bundle as a version."""
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    location = f"{run.info.artifact_uri}/{BUNDLE_ARTIFACT}"
    return client.create_model_version(name, location, run.info.run_id, tags=dict(tags))


def _publisher() -> str:
    """Return the id of this state directory; its runs in the registry carry it as a tag."""
    path = state_dir() / "publisher-id"
    if not path.exists():
        write_atomic(path, uuid.uuid4().hex.encode())
    return path.read_text()


def _kill_interrupted(client: Any, publisher: str) -> None:
    """End runs as KILLED that a killed process left RUNNING.

    Under the lock no other process publishes from this state directory; runs of other state
    directories have another id.
    """
    experiment = client.get_experiment_by_name(EXPERIMENT).experiment_id
    query = f"tags.`{PUBLISHER_TAG}` = '{publisher}' and attributes.status = 'RUNNING'"
    for run in client.search_runs([experiment], query):
        client.set_terminated(run.info.run_id, "KILLED")


@contextlib.contextmanager
def _run(source: SourceModel, tags: Mapping[str, str]) -> Iterator[Any]:
    """Start the run that records the optimization; KILLED if the user interrupts it."""
    import mlflow

    with mlflow.start_run(
        run_name=f"optimize {source.name} {source.version}",
        parent_run_id=source.run_id or None,
        tags=dict(tags),
    ) as run:
        try:
            yield run
        except KeyboardInterrupt:
            mlflow.end_run("KILLED")
            raise


def _tags(bundle: VerifiedBundle, source: SourceModel, verdict: str) -> dict[str, str]:
    variant = bundle.manifest.variant
    return {
        DIGEST_TAG: bundle.digest,
        SOURCE_URI_TAG: source.uri,
        SOURCE_VERSION_TAG: source.version,
        "mlctl.source_sha256": source.sha256,
        RECIPE_TAG: variant.recipe,
        "mlctl.precision": variant.precision,
        "mlctl.verdict": verdict,
    }


def _log_files(report: PublishReport) -> None:
    import mlflow

    with tempfile.TemporaryDirectory() as directory:
        for name, content in report.files.items():
            path = Path(directory, check_relative(name))
            path.write_bytes(content)
            mlflow.log_artifact(str(path))


def log_onnx(
    model: Any,
    signature: Signature,
    *,
    registered_name: str | None = None,
    metadata: Mapping[str, str] | None = None,
) -> Any:
    """Log a graph in the run in progress; register it too if `registered_name` is given."""
    import mlflow.onnx

    # Explicit requirements avoid MLflow's own search for them, which takes many seconds.
    with _unchecked_requirements():
        return mlflow.onnx.log_model(
            model,
            name="model",
            signature=_mlflow_signature(signature),
            pip_requirements=_requirements(),
            metadata=metadata,
            registered_model_name=registered_name,
        )


@contextlib.contextmanager
def _unchecked_requirements() -> Iterator[None]:
    """Keep MLflow from comparing `_requirements` with the installed versions, which they are.

    It reads the list of files of each installed package first: 1.2 s of CPU time.
    """
    import mlflow.utils.environment

    environment: Any = mlflow.utils.environment
    check = getattr(environment, "warn_dependency_requirement_mismatches", None)
    if check is None:  # another version of MLflow
        yield
        return
    environment.warn_dependency_requirement_mismatches = lambda _: None
    try:
        yield
    finally:
        environment.warn_dependency_requirement_mismatches = check


def _requirements() -> list[str]:
    installed = {name: installed_version(name) for name in ("onnx", *RUNTIMES)}
    return [f"{name}=={version}" for name, version in installed.items() if version is not None]


def _mlflow_signature(signature: Signature) -> Any:
    from mlflow.models import ModelSignature
    from mlflow.types import Schema

    return ModelSignature(
        Schema([_mlflow_spec(spec) for spec in signature.inputs]),
        Schema([_mlflow_spec(spec) for spec in signature.outputs]),
    )


def _mlflow_spec(spec: TensorSpec) -> Any:
    import numpy as np
    from mlflow.types import TensorSpec as MlflowTensorSpec

    return MlflowTensorSpec(np.dtype(spec.dtype.numpy_name), spec.shape, spec.name)
