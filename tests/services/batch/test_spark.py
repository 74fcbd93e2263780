"""The function that Spark's workers call: on numpy batches, and once by Spark itself."""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.batch.spark import make_predict
from mlctl.services.layout.pipeline_scorer import VerifiedPipeline
from tests.services.layout.test_pipeline_scorer import pipeline
from tests.support import tables
from tests.support.bundles import expected, make_bundle
from tests.support.pairs import answer_of, make_pair_pipeline
from tests.support.transforms import make_text_bundle


def test_spark__batch__has_the_answers_of_the_scorer(bundle: VerifiedBundle) -> None:
    x = tables.inputs(300)
    predict = make_predict(bundle)()
    np.testing.assert_allclose(predict(x), expected(x), rtol=1e-4, atol=1e-5)
    # Spark's doubles are as good.
    np.testing.assert_array_equal(predict(x.astype(np.float64)), predict(x))


def test_scoring__rows_that_influence_each_other__are_scored_one_by_one(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "bundle", row_independent=False)
    x = tables.inputs(9)
    predict = make_predict(bundle)()
    np.testing.assert_allclose(predict(x), x * 2 + x, rtol=1e-4, atol=1e-5)


def test_spark__batch_of_the_wrong_width__fails_the_task(bundle: VerifiedBundle) -> None:
    predict = make_predict(bundle)()
    with pytest.raises(ValueError, match="reshape"):
        predict(np.zeros((3, 5), np.float32))


def test_spark__bad_text__is_named_in_the_error(tmp_path: Path) -> None:
    bundle = make_text_bundle(tmp_path / "bundle")
    predict = make_predict(bundle)()
    texts = np.array(["one two", "three three"], object)
    found = predict(texts)
    assert found["kind"].tolist() == ["small", "large"]
    np.testing.assert_allclose(found["total"], [1.5, 3.0])
    texts[1] = ""
    with pytest.raises(ValueError, match=r"row 1 of a batch has no answer: .*no words"):
        predict(texts)


def test_spark__pipeline__is_scored_as_a_whole(tmp_path: Path) -> None:
    whole = VerifiedPipeline.of(pipeline(tmp_path))
    assert whole is not None
    x = tables.inputs(300)
    answers = make_predict(whole)()(x)
    wanted = expected(expected(x), scale=3.0)
    np.testing.assert_allclose(answers, wanted, rtol=1e-4, atol=1e-5)


def test_spark__function__has_a_parameter_for_each_column(tmp_path: Path) -> None:
    whole = VerifiedPipeline.of(make_pair_pipeline(tmp_path))
    assert whole is not None
    predict = make_predict(whole)()
    assert len(inspect.signature(predict).parameters) == 2
    x, n = np.ones((5, 2)), np.arange(15).reshape(5, 3)
    found = predict(x, n)
    wanted = answer_of(expected(x.astype(np.float32)), n)
    np.testing.assert_allclose(found["y"], wanted["y"], rtol=1e-5)
    np.testing.assert_array_equal(found["m"], wanted["m"])


def test_spark__folder_sent_to_workers__is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = VerifiedPipeline.of(pipeline(tmp_path / "driver"))
    assert whole is not None
    x = tables.inputs(3)
    answers = make_predict(whole)()(x)
    # What Spark says on a worker; the folder of the driver is not there.
    files = SimpleNamespace(get=lambda name: str(tmp_path / name))
    monkeypatch.setitem(sys.modules, "pyspark", SimpleNamespace(SparkFiles=files))
    (tmp_path / "driver").rename(tmp_path / "models")
    np.testing.assert_array_equal(make_predict(whole, "models")()(x), answers)
    (tmp_path / "models" / "triple").rename(tmp_path / "triple")
    np.testing.assert_allclose(
        make_predict(whole.stages[1], "triple")()(x), expected(x, scale=3.0), rtol=1e-4, atol=1e-5
    )
    with pytest.raises(MlctlError, match="manifest"):
        make_predict(whole, "models")()


def test_spark__other_bundle_in_the_folder__is_not_loaded(tmp_path: Path) -> None:
    meant = make_bundle(tmp_path / "meant")
    other = make_bundle(tmp_path / "other", scale=3.0)
    with pytest.raises(MlctlError) as caught:
        make_predict(replace(meant, root=other.root))()
    assert caught.value.code is ErrorCode.DIGEST_MISMATCH


# In a process of its own: Spark leaves threads and connections behind.
_JOB = """
import json, sys
from pyspark.sql import SparkSession
from mlctl.services.batch.spark import predict_udf

bundle, rows, copy = sys.argv[1:]
settings = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"}
spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
table = spark.read.parquet(rows)
spark.sparkContext.addFile(copy, recursive=True)
by_path = table.withColumn("y", predict_udf(bundle)("x"))
by_name = table.withColumn("y", predict_udf(copy, name="copy")("x"))
found = [[[row.id, row.y] for row in each.collect()] for each in (by_path, by_name)]
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("pyspark") is None or shutil.which("java") is None,
    reason="pyspark or Java is not installed",
)
def test_spark__column_of_a_real_table__has_the_answers_of_the_scorer(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "bundle")
    shutil.copytree(bundle.root, tmp_path / "copy")
    x = tables.write_rows(tmp_path / "rows.parquet", 300)
    paths = [str(tmp_path / name) for name in ("bundle", "rows.parquet", "copy")]
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, "-c", _JOB, *paths], env=environment, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    for found in json.loads(done.stdout.splitlines()[-1]):
        assert [number for number, _y in found] == [*range(300)]
        np.testing.assert_allclose([y for _number, y in found], expected(x), rtol=1e-4, atol=1e-5)
