"""What MLflow stores is loaded without running its code; anything else is named."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression

from mlctl.bundle.tensors import Datatype
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.home import HOME_VARIABLE
from mlctl.optimize.inputs.estimators import estimator, load_estimator
from mlctl.optimize.inputs.estimators.skops_file import load_skops
from mlctl.registry.catalog import ModelFormat
from mlctl.registry.mlflow_catalog import MlflowCatalog
from mlctl.registry.tracking import TRACKING_VARIABLE, configure_tracking
from tests.support.estimators import customers, skops_source

pytestmark = pytest.mark.slow

ROWS = np.random.default_rng(0).normal(size=(60, 3))
LABELS = (ROWS[:, 0] > 0).astype(int)


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MlflowCatalog:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    monkeypatch.delenv(TRACKING_VARIABLE, raising=False)
    configure_tracking()
    return MlflowCatalog()


def log(model: Any, rows: Any, flavor: str, name: str, **options: Any) -> None:
    import importlib

    import mlflow
    from mlflow.models import infer_signature

    from mlctl.core.quiet import quiet

    with quiet(), mlflow.start_run():
        importlib.import_module(f"mlflow.{flavor}").log_model(
            model,
            name="model",
            signature=infer_signature(rows, model.predict(rows)),
            pip_requirements=[],
            registered_model_name=name,
            **options,
        )


def test_columns__of_a_data_frame__become_inputs(catalog: MlflowCatalog) -> None:
    rows = customers(60, 1)[["age", "visits", "vip"]]
    model = RandomForestClassifier(3).fit(rows.fillna(0), LABELS)
    log(model, rows.fillna(0), "sklearn", "table", skops_trusted_types=["sklearn.tree._tree.Tree"])
    source = load_estimator(catalog.resolve("table")).source
    assert source.format is ModelFormat.SKLEARN
    kinds = {spec.name: spec.dtype for spec in source.signature.inputs}
    assert kinds == {"age": Datatype.FP64, "visits": Datatype.INT64, "vip": Datatype.BOOL}
    assert all(spec.shape == (-1,) for spec in source.signature.inputs)
    assert [spec.name for spec in source.signature.outputs] == ["probabilities", "label"]


def test_pickle__of_scikit_learn__is_rejected_with_how_to_log_it_again(
    catalog: MlflowCatalog,
) -> None:
    model = LogisticRegression().fit(ROWS, LABELS)
    log(model, ROWS, "sklearn", "pickled", serialization_format="cloudpickle")
    with pytest.raises(MlctlError) as caught:
        catalog.resolve("pickled")
    assert caught.value.code is ErrorCode.PICKLE_REJECTED
    assert 'serialization_format="skops"' in str(caught.value.hint)
    found = load_estimator(catalog.resolve("pickled", allow_pickle=True))
    assert found.source.pickle_allowed
    assert np.array_equal(found.run({"input": ROWS})["label"], model.predict(ROWS))


@pytest.mark.parametrize("flavor", ["xgboost", "lightgbm"])
def test_booster__without_scikit_learn__becomes_a_classifier(
    flavor: str, catalog: MlflowCatalog
) -> None:
    import lightgbm
    import xgboost

    if flavor == "xgboost":
        model: Any = xgboost.XGBClassifier(n_estimators=3, n_jobs=1).fit(ROWS, LABELS)
        want = model.predict_proba(ROWS)
    else:
        data = lightgbm.Dataset(ROWS, LABELS)
        model = lightgbm.train({"objective": "binary", "verbose": -1, "num_threads": 1}, data, 3)
        want = np.stack([1 - model.predict(ROWS), model.predict(ROWS)], axis=1)
    log(model, ROWS, flavor, flavor)
    found = load_estimator(catalog.resolve(flavor))
    assert np.allclose(found.run({"input": ROWS})["probabilities"], want)


def test_tree__with_a_node_that_does_not_exist__is_rejected(tmp_path: Path) -> None:
    model = RandomForestClassifier(2, random_state=0).fit(ROWS, LABELS)
    source = skops_source(model, tmp_path, 3)
    assert load_skops(source.model_path, "m").n_features_in_ == 3
    state = model.estimators_[1].tree_.__getstate__()
    state["nodes"]["left_child"][0] = 1_000_000
    model.estimators_[1].tree_.__setstate__(state)
    altered = skops_source(model, tmp_path, 3)
    with pytest.raises(MlctlError, match="nodes or features that do not exist"):
        load_skops(altered.model_path, "m")


def test_packages__missing__names_the_install_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = skops_source(LogisticRegression().fit(ROWS, LABELS), tmp_path, 3)
    packages = {ModelFormat.SKLEARN: ("sklearn", "not_installed")}
    monkeypatch.setattr(estimator, "_PACKAGES", packages)
    with pytest.raises(MlctlError, match="not_installed") as caught:
        load_estimator(source)
    assert caught.value.code is ErrorCode.RUNTIME_MISSING
    assert "'.[cpu,optimize,sklearn]'" in str(caught.value.hint)
