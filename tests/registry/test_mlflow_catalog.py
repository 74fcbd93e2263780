from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mlctl.bundle.tensors import DYNAMIC, Datatype, Signature, TensorSpec
from mlctl.bundle.verify import VerifiedBundle, verify
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.files import exclusive
from mlctl.core.home import state_dir
from mlctl.registry.catalog import ModelFormat, PublishedModel, PublishReport, artifacts_sha256
from mlctl.registry.mlflow_catalog import MlflowCatalog
from mlctl.registry.publish import PUBLISHER_TAG
from tests.support.bundles import make_bundle

pytestmark = pytest.mark.slow

REPORT = PublishReport(
    verdict="chosen: the smallest that passes",
    params={"prefer": "size"},
    metrics={"fp32/accuracy": 0.99, "int8-cpu/accuracy": 0.98},
    files={"report.json": b"{}"},
)


def rejected(code: ErrorCode, text: str, catalog: MlflowCatalog) -> str:
    with pytest.raises(MlctlError) as caught:
        catalog.resolve(text)
    assert caught.value.code is code
    return caught.value.message


def test_resolve__number_alias_or_newest__returns_the_version(catalog: MlflowCatalog) -> None:
    by_alias = catalog.resolve("models:/digits@candidate")
    assert by_alias == catalog.resolve("digits/1")
    assert by_alias.uri == "models:/digits/1"
    assert by_alias.format is ModelFormat.PYTORCH
    assert not by_alias.pickle_allowed
    assert by_alias.run_id
    assert by_alias.signature == Signature(
        inputs=(TensorSpec(name="x", dtype=Datatype.FP32, shape=(DYNAMIC, 1, 8, 8)),),
        outputs=(TensorSpec(name="logits", dtype=Datatype.FP32, shape=(DYNAMIC, 4)),),
    )
    assert artifacts_sha256(by_alias.artifacts) == by_alias.sha256
    newest = catalog.resolve("digits")
    assert newest.version == "2"
    assert newest.sha256 != by_alias.sha256


def test_resolve__a_damaged_copy__is_fetched_again(catalog: MlflowCatalog) -> None:
    source = catalog.resolve("digits/1")
    (source.artifacts / "MLmodel").write_text("damaged")
    again = catalog.resolve("digits/1")
    assert again == source
    assert artifacts_sha256(again.artifacts) == source.sha256


def test_resolve__a_missing_model__suggests_existing_ones(catalog: MlflowCatalog) -> None:
    code = ErrorCode.MODEL_NOT_FOUND
    assert "did you mean 'digits'" in rejected(code, "digit@candidate", catalog)
    assert "did you mean 'candidate'" in rejected(code, "digits@candidat", catalog)
    assert "its aliases: candidate" in rejected(code, "digits@zzz", catalog)
    assert "its versions: 1, 2" in rejected(code, "digits/99", catalog)


def test_resolve__a_pickle__is_rejected_unless_allowed(catalog: MlflowCatalog) -> None:
    assert "models:/branchy/1" in rejected(ErrorCode.PICKLE_REJECTED, "branchy", catalog)
    source = catalog.resolve("branchy", allow_pickle=True)
    assert source.format is ModelFormat.PYTORCH
    assert source.pickle_allowed


def test_resolve__an_optimized_version__is_rejected(catalog: MlflowCatalog) -> None:
    message = rejected(ErrorCode.UNSUPPORTED_MODEL, "digits-optimized/1", catalog)
    assert "digits-optimized" in message


def test_publish__packages_that_are_installed__are_not_searched(
    catalog: MlflowCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow would read the files of every installed package, to check requirements that hold."""
    searched: list[str] = []
    monkeypatch.setattr(
        "mlflow.utils.requirements_utils._init_packages_to_modules_map",
        lambda: searched.append("packages"),
    )
    published = publish_bundle(catalog, tmp_path / "bundle", 13.0)

    import mlflow.utils.environment
    from mlflow.artifacts import load_text

    requirements = load_text(f"{published.uri}/requirements.txt").split()
    assert any(each.startswith("onnxruntime==") for each in requirements)
    assert searched == []
    environment: Any = mlflow.utils.environment
    environment.warn_dependency_requirement_mismatches(requirements)  # as another caller would
    assert searched


def test_publish__again__is_idempotent_with_lineage(catalog: MlflowCatalog, tmp_path: Path) -> None:
    source = catalog.resolve("digits/1")
    bundle = make_bundle(tmp_path / "bundle", name="digits")
    published = catalog.publish(bundle, source, REPORT)
    assert catalog.publish(bundle, source, REPORT) == published
    assert published.name == "digits-optimized"
    assert published.digest == bundle.digest
    assert published.source_uri == "models:/digits/1"

    import mlflow

    client = mlflow.MlflowClient()
    run = client.get_run(published.run_id)
    assert run.data.tags["mlflow.parentRunId"] == source.run_id
    assert run.data.metrics == REPORT.metrics
    assert run.data.params["recipe"] == "fp32"
    tags = client.get_model_version(published.name, published.version).tags
    assert tags["mlctl.digest"] == bundle.digest
    assert tags["mlctl.source_sha256"] == source.sha256
    assert tags["mlctl.precision"] == "fp32"
    assert tags["mlctl.verdict"] == REPORT.verdict
    assert "report.json" in {file.path for file in client.list_artifacts(published.run_id)}


def publish_bundle(catalog: MlflowCatalog, root: Path, scale: float) -> PublishedModel:
    bundle = make_bundle(root, name="digits", scale=scale)
    return catalog.publish(bundle, catalog.resolve("digits/1"), REPORT)


def test_publish__interrupted__leaves_its_run_killed(
    catalog: MlflowCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    started: list[str] = []

    def interrupt(report: PublishReport) -> None:
        del report
        run = mlflow.active_run()
        assert run is not None
        started.append(run.info.run_id)
        raise KeyboardInterrupt

    monkeypatch.setattr("mlctl.registry.publish._log_files", interrupt)
    with pytest.raises(KeyboardInterrupt):
        publish_bundle(catalog, tmp_path / "bundle", 11.0)
    assert mlflow.MlflowClient().get_run(started[0]).info.status == "KILLED"


def test_publish__after_a_killed_process__ends_its_run_and_no_other(
    catalog: MlflowCatalog, tmp_path: Path
) -> None:
    import mlflow

    client = mlflow.MlflowClient()
    before = client.get_run(publish_bundle(catalog, tmp_path / "first", 12.0).run_id)
    assert before.info.status == "FINISHED"
    # A killed process leaves such a run; the other two may be in progress elsewhere.
    own = {PUBLISHER_TAG: before.data.tags[PUBLISHER_TAG]}
    abandoned, others, users = (
        client.create_run(before.info.experiment_id, tags=tags).info.run_id
        for tags in (own, {PUBLISHER_TAG: "0" * 32}, {})
    )
    publish_bundle(catalog, tmp_path / "second", 13.0)
    statuses = [client.get_run(run).info.status for run in (abandoned, others, users)]
    assert statuses == ["KILLED", "RUNNING", "RUNNING"]


def test_publish__two_at_once__register_once(catalog: MlflowCatalog, tmp_path: Path) -> None:
    source = catalog.resolve("digits/1")
    bundle = make_bundle(tmp_path / "bundle", name="digits", scale=7.0)
    turn = exclusive(state_dir("locks") / "publish")
    with ThreadPoolExecutor(1) as pool:
        with turn:
            other = pool.submit(MlflowCatalog().publish, bundle, source, REPORT)
            with pytest.raises(TimeoutError):
                other.result(timeout=0.2)
        assert other.result(timeout=120) == catalog.publish(bundle, source, REPORT)


@pytest.fixture
def two_bundles(catalog: MlflowCatalog, tmp_path: Path) -> tuple[VerifiedBundle, VerifiedBundle]:
    """One optimized version of each version of `digits`."""
    first = make_bundle(tmp_path / "first", name="digits", scale=3.0)
    second = make_bundle(tmp_path / "second", name="digits", scale=4.0)
    catalog.publish(first, catalog.resolve("digits/1"), PublishReport("chosen"))
    catalog.publish(second, catalog.resolve("digits/2"), PublishReport("chosen"))
    return first, second


def test_find_optimized__source_or_own_reference__returns_the_version(
    catalog: MlflowCatalog, two_bundles: tuple[VerifiedBundle, VerifiedBundle]
) -> None:
    first, second = two_bundles
    assert catalog.find_optimized("digits").digest == second.digest
    assert catalog.find_optimized("digits/2").digest == second.digest
    assert catalog.find_optimized("digits-optimized").digest == second.digest
    by_alias = catalog.find_optimized("digits@candidate")
    assert by_alias.digest == first.digest
    assert catalog.find_optimized(by_alias.uri) == by_alias
    assert catalog.find_by_digest(first.digest) == by_alias


def test_select_optimized__without_a_version__takes_the_newest_and_names_the_champion(
    catalog: MlflowCatalog, two_bundles: tuple[VerifiedBundle, VerifiedBundle]
) -> None:
    first, second = (catalog.find_by_digest(bundle.digest) for bundle in two_bundles)
    catalog.write_champion(first.digest)
    found = catalog.select_optimized("digits/2")
    assert found.published == second
    assert found.why == (
        "fp32 of models:/digits/2, the only optimized version of models:/digits/2; "
        f"@champion is version {first.version}"
    )
    catalog.write_champion(second.digest)
    newest = catalog.select_optimized("digits")
    assert newest.published == second
    assert newest.why.startswith("fp32 of models:/digits/2, the newest of ")
    assert newest.why.endswith(" optimized versions of models:/digits")


def test_select_optimized__with_a_version__takes_that_one(
    catalog: MlflowCatalog, two_bundles: tuple[VerifiedBundle, VerifiedBundle]
) -> None:
    first = catalog.find_by_digest(two_bundles[0].digest)
    for name in ("digits", "digits-optimized"):
        found = catalog.select_optimized(name, first.version)
        assert found.published == first
        assert found.why == "fp32 of models:/digits/1, chosen by its version"
    with pytest.raises(MlctlError, match="digits/2 names a version already") as caught:
        catalog.select_optimized("digits/2", "1")
    assert "digits-optimized/1" in caught.value.hint
    with pytest.raises(MlctlError, match="has no version 99; its versions: "):
        catalog.select_optimized("digits", "99")


def test_find_optimized__never_optimized__hints_at_the_command(catalog: MlflowCatalog) -> None:
    with pytest.raises(MlctlError, match="models:/branchy has no optimized version") as caught:
        catalog.find_optimized("branchy")
    assert "mlctl optimize models:/branchy" in caught.value.hint
    with pytest.raises(MlctlError, match="did you mean 'branchy'"):
        catalog.find_optimized("branch")
    with pytest.raises(MlctlError, match="has the digest"):
        catalog.find_by_digest("f" * 64)
    with pytest.raises(MlctlError, match="hexadecimal"):
        catalog.find_by_digest("' or name like '%")


def test_write_champion__published_digest__sets_the_alias_on_both_models(
    catalog: MlflowCatalog, two_bundles: tuple[VerifiedBundle, VerifiedBundle]
) -> None:
    first, second = two_bundles
    for bundle in (first, second, second):
        published = catalog.write_champion(bundle.digest)
        assert catalog.find_optimized("digits-optimized@champion") == published
        assert catalog.resolve("digits@champion").version == published.source_version
    row = next(row for row in catalog.list_models() if row.digest == second.digest)
    assert row.aliases == ("champion",)
    assert row.source_uri == "models:/digits/2"


def test_list_models__every_version__newest_first(catalog: MlflowCatalog) -> None:
    rows = [row for row in catalog.list_models() if row.name == "digits"]
    assert [row.version for row in rows] == ["2", "1"]
    assert "candidate" in rows[1].aliases
    assert rows[0].digest is None


def test_set_alias__a_missing_version__is_rejected(catalog: MlflowCatalog) -> None:
    with pytest.raises(MlctlError, match="no version 77"):
        catalog.set_alias("digits", "champion", "77")


def test_fetch_bundle__published_version__is_verified(
    catalog: MlflowCatalog,
    two_bundles: tuple[VerifiedBundle, VerifiedBundle],
    tmp_path: Path,
) -> None:
    published = catalog.find_by_digest(two_bundles[0].digest)
    target = tmp_path / "new" / "fetched"
    fetched = catalog.fetch_bundle(published, target)
    assert fetched == verify(target, two_bundles[0].digest)
    assert {path.name for path in target.parent.iterdir()} == {"fetched"}


def test_fetch_bundle__altered_in_the_registry__is_rejected(
    catalog: MlflowCatalog, tmp_path: Path
) -> None:
    bundle = make_bundle(tmp_path / "bundle", name="digits", scale=5.0)
    other = make_bundle(tmp_path / "other", name="digits", scale=6.0)
    published = catalog.publish(bundle, catalog.resolve("digits/1"), PublishReport("chosen"))
    stored = _stored_bundle(published.run_id)
    with (stored / "model.onnx").open("ab") as file:
        file.write(b"\0")
    _refuse_fetch(catalog, bundle.digest, tmp_path / "fetched", ErrorCode.FILE_ALTERED)
    shutil.rmtree(stored)
    shutil.copytree(other.root, stored)
    _refuse_fetch(catalog, bundle.digest, tmp_path / "fetched", ErrorCode.DIGEST_MISMATCH)


def _stored_bundle(run_id: str) -> Path:
    import mlflow

    uri: str = mlflow.get_run(run_id).info.artifact_uri
    return Path(uri.removeprefix("file://")) / "bundle"


def _refuse_fetch(catalog: MlflowCatalog, digest: str, target: Path, code: ErrorCode) -> None:
    with pytest.raises(MlctlError) as caught:
        catalog.fetch_bundle(catalog.find_by_digest(digest), target)
    assert caught.value.code is code
    assert not target.exists()
