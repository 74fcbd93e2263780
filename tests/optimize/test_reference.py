from __future__ import annotations

import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bundle.errors import ErrorCode, MlctlError
from optimize.reference import load_reference, name_outputs
from registry.mlflow_catalog import MlflowCatalog


@pytest.mark.slow
@pytest.mark.parametrize("environment", ["false", "true"])
def test_a_pickle_inside_of_a_pt2_archive_is_never_run(
    catalog: MlflowCatalog,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    environment: str,
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", environment)
    source = catalog.resolve("Digits/1")
    root, touched = tmp_path / "model", tmp_path / "touched"
    shutil.copytree(source.artifacts, root)
    with zipfile.ZipFile(root / "data" / "model.pt2", "a") as archive:
        folder = archive.namelist()[0].split("/")[0]
        # What the protocol of pickle calls: os.system("touch ...").
        payload = f"cposix\nsystem\n(S'touch {touched}'\ntR.".encode()
        archive.writestr(f"{folder}/data/constants/custom_obj_0", payload)
    with pytest.raises(MlctlError) as caught:
        load_reference(replace(source, artifacts=root, model_path=root))
    assert caught.value.code is ErrorCode.PICKLE_REFUSED
    assert not touched.exists()


@pytest.mark.slow
def test_a_damaged_archive_is_refused(catalog: MlflowCatalog, tmp_path: Path) -> None:
    source = catalog.resolve("Digits/1")
    root = tmp_path / "model"
    shutil.copytree(source.artifacts, root)
    (root / "data" / "model.pt2").write_bytes(b"not an archive")
    with pytest.raises(MlctlError) as caught:
        load_reference(replace(source, artifacts=root, model_path=root))
    assert caught.value.code in (ErrorCode.UNSUPPORTED_MODEL, ErrorCode.PICKLE_REFUSED)


def test_outputs_are_named_by_key_or_in_order() -> None:
    one, two = torch.zeros(1), torch.ones(1)
    names = ["a", "b"]
    for outputs in ((one, two), [one, two], {"b": two, "a": one}, {"x": one, "y": two}):
        found = name_outputs(outputs, names)
        assert list(found) == names
        assert np.array_equal(found["b"], [1.0])
    assert list(name_outputs(one, ["a"])) == ["a"]
    with pytest.raises(MlctlError, match="returns 1 tensors, its signature names 2"):
        name_outputs(one, names)
