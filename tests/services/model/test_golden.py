import zipfile
from pathlib import Path

import numpy as np
import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.model.golden import load_golden, save_golden


def test_golden__saved__is_read_back(tmp_path: Path) -> None:
    x = np.arange(6, dtype=np.float16).reshape(2, 3)
    words = np.array([b"a", b"longer"], dtype=object)
    save_golden(tmp_path / "g.npz", {"x": x, "w": words}, {"y": x * 2})
    inputs, outputs = load_golden(tmp_path / "g.npz")
    np.testing.assert_array_equal(inputs["x"], x)
    assert inputs["x"].dtype == np.float16
    assert inputs["w"].tolist() == [b"a", b"longer"]
    assert outputs["y"].tolist() == (x * 2).tolist()


def test_save_golden__trailing_nul__is_rejected(tmp_path: Path) -> None:
    with pytest.raises(MlctlError, match="NUL"):
        save_golden(tmp_path / "g.npz", {"w": np.array([b"a\0"], dtype=object)}, {})


def test_load_golden__other_content__is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "g.npz"
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(MlctlError) as caught:
        load_golden(path)
    assert caught.value.code is ErrorCode.FILE_ALTERED
    save_golden(path, {"x": np.ones(1)}, {})
    with pytest.raises(MlctlError, match="no outputs"):
        load_golden(path)


def test_load_golden__pickle_inside__is_never_loaded(tmp_path: Path) -> None:
    path = tmp_path / "g.npz"
    with zipfile.ZipFile(path, "w") as archive, archive.open("in.x.npy", "w") as file:
        np.lib.format.write_array(file, np.array([{"an": "object"}], dtype=object))
    with pytest.raises(MlctlError) as caught:
        load_golden(path)
    assert caught.value.code is ErrorCode.FILE_ALTERED
