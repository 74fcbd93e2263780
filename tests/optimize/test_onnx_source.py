"""The pipeline on a model that is registered as ONNX, with the in-memory registry."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from mlctl.bundle.manifest import MODEL_NAME
from mlctl.bundle.verify import verify
from mlctl.core.errors import MlctlError
from mlctl.core.home import HOME_VARIABLE
from mlctl.optimize.inputs.prepare import OptimizeOptions
from mlctl.optimize.pipeline import OptimizeResult, optimize
from mlctl.optimize.recipes.fp32 import Fp32
from mlctl.optimize.variants.goals import Goals, Prefer
from mlctl.services.model.scorer import Scorer
from mlctl.services.model.session import open_session
from mlctl.services.model.settings import RuntimeSettings
from mlctl.services.model.warmup import check_golden
from tests.support.bundles import expected
from tests.support.memory_catalog import MemoryCatalog
from tests.support.sources import save_rows

PROJECT = Path(__file__).parents[2]
GOALS = Goals(prefer=Prefer.SIZE)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rows = np.random.default_rng(1).standard_normal((64, 4), dtype=np.float32)
    return save_rows(tmp_path / "rows.npz", {"x": rows})


def run(catalog: MemoryCatalog, data: Path) -> OptimizeResult:
    return optimize("tiny", data, catalog=catalog, goals=GOALS)


def test_onnx_source__optimized__is_published_with_metrics_and_a_report(
    onnx_catalog: MemoryCatalog, data: Path
) -> None:
    result = run(onnx_catalog, data)
    assert result.source_score is None
    assert verify(result.bundle.root).digest == result.published.digest
    report = onnx_catalog.reports[0]
    assert report.verdict.startswith("chosen: ")
    assert report.metrics["fp32/relative_l2"] == 0.0
    assert report.metrics["fp32/batch32_median_ms"] > 0
    variants = json.loads(report.files["report.json"])["variants"]
    assert [each["recipe"] for each in variants] == [
        "fp32",
        "fp16",
        "int8-static",
        "int8-dynamic",
        "int4",
    ]
    assert variants[2]["verdict"] == "not applicable"


def test_onnx_source__a_transform_with_features__takes_them_from_the_data(
    onnx_catalog: MemoryCatalog, tmp_path: Path
) -> None:
    code = tmp_path / "transform.py"
    code.write_text(
        "import numpy as np\n"
        'INPUTS = {"user": ("INT64", [-1])}\n'
        'VALUES = {name: ("FP32", 0.5) for name in "abcd"}\n'
        'FEATURES = {"table": "users", "key": "user", "values": VALUES}\n'
        "def preprocess(inputs):\n"
        '    return {"x": np.stack([inputs[name] for name in VALUES], axis=1)}\n'
    )
    values = np.random.default_rng(1).standard_normal((64, 4), dtype=np.float32)
    columns = dict(zip("abcd", values.T, strict=True))
    data = save_rows(tmp_path / "rows.npz", {"user": np.arange(64), **columns})
    options = OptimizeOptions(transform=code)
    result = optimize("tiny", data, catalog=onnx_catalog, options=options, recipes=[Fp32()])
    assert [spec.name for spec in result.bundle.manifest.signature.inputs] == ["user"]
    path = tmp_path / "features.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE users (user INTEGER PRIMARY KEY, a REAL, b REAL, c REAL, d REAL)")
        db.execute("INSERT INTO users VALUES (7, 1, 2, 3, 4)")
        db.commit()
    scorer = Scorer.open(result.bundle, RuntimeSettings(feature_store=f"sqlite://{path}"))
    golden = check_golden(scorer, result.bundle)
    assert golden.keys() == {"user", *"abcd"}
    answer = scorer.run({"user": np.array([7, 8])})
    x = np.array([[1, 2, 3, 4], [0.5] * 4], np.float32)
    (wanted,) = open_session(result.bundle.path(MODEL_NAME)).run({"x": x}).values()
    (given,) = answer.values()
    np.testing.assert_allclose(given, wanted, rtol=1e-6)


def test_onnx_source__a_damaged_cache__changes_nothing(
    onnx_catalog: MemoryCatalog, data: Path, home: Path
) -> None:
    digest = run(onnx_catalog, data).digest
    graphs = sorted((home / "cache" / "optimize").glob("*/model.onnx"))
    assert len(graphs) == 3
    for answers in (home / "cache" / "optimize").glob("*/answers.npz"):
        answers.write_bytes(answers.read_bytes()[:-1])
    (home / "bundles" / digest / "golden.npz").write_bytes(b"")
    again = run(onnx_catalog, data)
    assert again.digest == digest
    assert verify(again.bundle.root, digest)


@pytest.mark.slow
def test_onnx_source__optimized__imports_no_torch(
    onnx_catalog: MemoryCatalog, data: Path, home: Path
) -> None:
    del onnx_catalog
    code = f"""
import os, sys, json
os.environ[{HOME_VARIABLE!r}] = {str(home)!r}
from pathlib import Path
from mlctl.optimize.pipeline import optimize
from tests.support.memory_catalog import MemoryCatalog
from tests.support.sources import onnx_source
before = sorted({{"torch", "mlflow", "onnx", "onnxruntime"}} & set(sys.modules) - {{"onnx"}})
catalog = MemoryCatalog([onnx_source(Path({str(home)!r}) / "again")])
result = optimize("tiny", Path({str(data)!r}), catalog=catalog)
print(json.dumps([before, "torch" in sys.modules, result.digest]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    before, torch_loaded, digest = json.loads(done.stdout)
    assert before == []
    assert not torch_loaded
    assert len(digest) == 64
    assert done.stderr == ""


def test_onnx_source__another_signature__is_rejected(
    onnx_catalog: MemoryCatalog, tmp_path: Path
) -> None:
    with pytest.raises(MlctlError, match="no array for input 'x'"):
        run(onnx_catalog, save_rows(tmp_path / "z.npz", {"z": np.zeros((9, 4), np.float32)}))


def test_onnx_source__golden_answers__are_those_of_the_formula(
    onnx_catalog: MemoryCatalog, data: Path
) -> None:
    from mlctl.services.model.golden import load_golden

    inputs, outputs = load_golden(run(onnx_catalog, data).bundle.path("golden.npz"))
    np.testing.assert_allclose(outputs["y"], expected(inputs["x"]), rtol=1e-5, atol=1e-5)
