"""A model or a pipeline as a function of Spark's columns: the same scorer, in each Python worker.

Spark schedules and retries; there are no markers and no quarantine. A row that cannot be scored
fails its task, with the reason.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mlctl.bundle.tensors import DYNAMIC, Datatype, TensorSpec
from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.batch.scoring import run_checked
from mlctl.services.layout.pipeline_scorer import VerifiedPipeline
from mlctl.services.layout.scorable import (
    Scorable,
    check_batched,
    find_scorable,
    open_scorable,
    verify_copies,
)
from mlctl.services.tables.bisect import TooManyError, score_rows

if TYPE_CHECKING:
    from mlctl.services.layout.pipeline_scorer import PipelineScorer
    from mlctl.services.model.scorer import Scorer

# Rows in a call of the function; the scorer cuts them as it does in a job.
_BATCH_ROWS = 8192
# Names in pyspark.sql.types.
_TYPES: dict[Datatype, str] = {
    Datatype.BOOL: "BooleanType",
    Datatype.INT8: "ByteType",
    Datatype.INT16: "ShortType",
    Datatype.INT32: "IntegerType",
    Datatype.INT64: "LongType",
    Datatype.FP32: "FloatType",
    Datatype.FP64: "DoubleType",
    Datatype.BYTES: "StringType",
}
Predict = Callable[..., Any]


def predict_udf(
    model: str | Scorable, *, name: str | None = None, batch_size: int = _BATCH_ROWS
) -> Any:
    """Return `pyspark.ml.functions.predict_batch_udf` of a model: a Bento's tag, or a folder.

    The function takes a column for each input, in the order of the signature: a value, or an array
    of as many values as a row has. It returns the output, or a struct of the outputs. Workers find
    the bundle's folder at the same path, or as `name` among the files that were sent with
    `SparkContext.addFile(folder, recursive=True)`, and load it only if its digest is the same. The
    stages of a pipeline are found in the same way, or by their names in the folder `name`.
    UNSUPPORTED_MODEL for tensors that Spark's function cannot take.
    """
    found = find_scorable(model) if isinstance(model, str) else model
    check_batched(found)
    signature = found.signature
    for spec in (*signature.inputs, *signature.outputs):
        _check_type(spec)
    functions: Any = importlib.import_module("pyspark.ml.functions")
    types: Any = importlib.import_module("pyspark.sql.types")
    made = {spec.name: _spark_type(spec, types) for spec in signature.outputs}
    fields = [types.StructField(name, kind) for name, kind in made.items()]

    return functions.predict_batch_udf(
        make_predict(found, name),
        return_type=fields[0].dataType if len(fields) == 1 else types.StructType(fields),
        batch_size=batch_size,
        input_tensor_shapes=[list(spec.shape[1:]) for spec in signature.inputs],
    )


def make_predict(model: Scorable, name: str | None = None) -> Callable[[], Predict]:
    """Return a function that a worker calls once to get its function of batches.

    The latter takes an array for each input, rows first, and returns the array of the only output,
    or arrays by output. Its ValueError has the first row that cannot be scored, and the reason.
    """

    def make() -> Predict:
        scorer = open_scorable(verify_copies(model, _folders(model, name)))

        def predict(*columns: np.ndarray) -> np.ndarray | dict[str, np.ndarray]:
            found = _score(scorer, columns)
            outputs = {
                spec.name: _as_column(spec, found[spec.name]) for spec in scorer.signature.outputs
            }
            return next(iter(outputs.values())) if len(outputs) == 1 else outputs

        # Spark passes as many columns as the function has parameters.
        names = (f"column_{number}" for number in range(len(scorer.signature.inputs)))
        only = inspect.Parameter.POSITIONAL_ONLY
        parameters = [inspect.Parameter(name, only) for name in names]
        predict.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return predict

    return make


def _score(
    scorer: Scorer | PipelineScorer, columns: tuple[np.ndarray, ...]
) -> dict[str, np.ndarray]:
    specs = scorer.signature.inputs
    inputs = {
        spec.name: _as_input(spec, column) for spec, column in zip(specs, columns, strict=True)
    }
    try:
        outputs = score_rows(partial(run_checked, scorer), inputs, max_bad=0).outputs
    except TooManyError as error:
        ((row, reason),) = error.reasons.items()
        raise ValueError(f"row {row} of a batch has no answer: {reason}") from error
    assert outputs is not None
    return outputs


def _as_input(spec: TensorSpec, column: np.ndarray) -> np.ndarray:
    if spec.dtype is Datatype.BYTES:
        texts = np.empty(column.shape, object)
        texts[...] = np.vectorize(str.encode, otypes=[object])(column)
        return texts.reshape(len(column), *spec.shape[1:])
    dtype = np.dtype(spec.dtype.numpy_name)
    with np.errstate(all="ignore"):
        made = np.ascontiguousarray(column, dtype).reshape(len(column), *spec.shape[1:])
        back = made.reshape(np.shape(column)).astype(column.dtype)
    # Floats may lose digits, but no value may become another number.
    if dtype.kind != "f" and not np.array_equal(back, column):
        raise ValueError(f"input {spec.name!r} has a value that is not one of {dtype.name}")
    return made


def _as_column(spec: TensorSpec, array: np.ndarray) -> np.ndarray:
    width = math.prod(spec.shape[1:])
    if spec.dtype is Datatype.BYTES:
        array = np.vectorize(bytes.decode, otypes=[object])(array)
    return array.reshape(len(array)) if width == 1 else array.reshape(len(array), width)


def _check_type(spec: TensorSpec) -> None:
    if spec.dtype not in _TYPES or DYNAMIC in spec.shape[1:]:
        raise MlctlError(
            ErrorCode.UNSUPPORTED_MODEL,
            f"tensor {spec.name!r} is {spec.dtype.value}{list(spec.shape)}, which Spark's "
            "functions of batches cannot take",
        )


def _spark_type(spec: TensorSpec, types: Any) -> Any:
    kind = getattr(types, _TYPES[spec.dtype])()
    return kind if math.prod(spec.shape[1:]) == 1 else types.ArrayType(kind)


def _folders(model: Scorable, name: str | None) -> Callable[[VerifiedBundle], Path]:
    """Return a function that returns the folder of a bundle on this worker."""
    if name is None:
        return lambda bundle: bundle.root
    spark: Any = importlib.import_module("pyspark")
    sent = Path(spark.SparkFiles.get(name))
    return lambda bundle: sent / bundle.name if isinstance(model, VerifiedPipeline) else sent
