from __future__ import annotations

import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from mlctl.bundle.tensors import Datatype, Signature, TensorSpec
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.optimize.proofs.reference import TorchReference, load_reference
from mlctl.registry.mlflow_catalog import MlflowCatalog
from tests.support.torch_models import save_torch


@pytest.mark.slow
@pytest.mark.parametrize("environment", ["false", "true"])
def test_load_reference__a_pickle_inside_a_pt2_archive__is_never_run(
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
    assert caught.value.code is ErrorCode.PICKLE_REJECTED
    assert not touched.exists()


@pytest.mark.slow
def test_load_reference__a_damaged_archive__is_rejected(
    catalog: MlflowCatalog, tmp_path: Path
) -> None:
    source = catalog.resolve("Digits/1")
    root = tmp_path / "model"
    shutil.copytree(source.artifacts, root)
    (root / "data" / "model.pt2").write_bytes(b"not an archive")
    with pytest.raises(MlctlError) as caught:
        load_reference(replace(source, artifacts=root, model_path=root))
    assert caught.value.code in (ErrorCode.UNSUPPORTED_MODEL, ErrorCode.PICKLE_REJECTED)


class Half(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.bfloat16()


def test_reference__an_output_that_numpy_cannot_represent__is_named() -> None:
    x, y = (TensorSpec(name=name, dtype=Datatype.FP32, shape=(-1, 2)) for name in "xy")
    reference = TorchReference(Half(), Signature(inputs=(x,), outputs=(y,)))
    with pytest.raises(MlctlError, match="output 'y' of the model is not an array") as caught:
        reference.run({"x": np.ones((1, 2), np.float32)})
    assert caught.value.code is ErrorCode.UNSUPPORTED_MODEL
    assert "float32" in caught.value.hint


class Negating(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.neg(x)


def test_a_pt2_archive_with_an_unknown_operator__is_rejected__names_the_operator(
    tmp_path: Path,
) -> None:
    x = np.ones((3, 2), np.float32)
    source = save_torch(tmp_path / "model", Negating(), {"x": x}, ("y",))
    path = tmp_path / "model" / "data" / "model.pt2"
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content.replace(b"torch.ops.aten.neg.", b"torch.ops.acme.neg."))
    with pytest.raises(MlctlError) as caught:
        load_reference(source)
    assert caught.value.code is ErrorCode.UNSUPPORTED_MODEL
    assert caught.value.message == (
        "models:/zoo/1 cannot be loaded: the operator acme.neg.default is not registered here"
    )
    assert "ONNX flavor" in caught.value.hint
