"""`--batching FILE`: what the user says is in the bundle; what is proved is not asked."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from prometheus_client import CollectorRegistry

from mlctl.bundle.tensors import DYNAMIC, Datatype, Signature, TensorSpec
from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.optimize.inputs.batching import DEFAULT, BatchingOptions, read_batching_options
from mlctl.optimize.inputs.prepare import OptimizeOptions
from mlctl.optimize.pipeline import optimize
from mlctl.optimize.recipes.base import Target
from mlctl.optimize.recipes.discovery import select
from mlctl.registry.catalog import SourceModel
from mlctl.services.online.models.served_model import ServedModel
from mlctl.services.online.settings import ServerSettings
from tests.support.bundles import expected
from tests.support.memory_catalog import MemoryCatalog
from tests.support.sources import onnx_source, save_rows

LENGTH = 8


def test_batching__dependent_rows__have_one_bucket() -> None:
    assert DEFAULT.batching(row_independent=True).buckets == (1, 2, 4, 8, 16, 32)
    assert DEFAULT.batching(row_independent=False).buckets == (1,)


def test_batching__max_rows__has_doubling_buckets() -> None:
    assert BatchingOptions(max_rows=48).sizes == (1, 2, 4, 8, 16, 32, 48)
    assert BatchingOptions(max_rows=1).sizes == (1,)
    assert BatchingOptions(buckets=(1, 3, 9)).batching(row_independent=True).max_rows == 9


def test_batching__dependent_rows__keep_only_the_queue_options() -> None:
    wanted = BatchingOptions(
        max_rows=64, pad={"x": 0}, max_queue_rows=7, max_queue_ms=2.5, max_length=9
    )
    batching = wanted.batching(row_independent=False)
    assert (batching.max_rows, batching.buckets, batching.pad) == (1, (1,), None)
    assert (batching.max_queue_rows, batching.max_queue_ms) == (7, 2.5)
    assert (batching.max_length, batching.max_body_bytes) == (9, None)


def test_key__other_sizes__is_another_key() -> None:
    assert DEFAULT.key == BatchingOptions(max_rows=32, max_wait_ms=3).key == {}
    assert BatchingOptions(max_rows=4).key == {"batches": "1,2,4"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "JSON"),
        ("[]", "object"),
        ('{"max_row": 3}', "max_row: "),
        ('{"max_rows": 0}', "max_rows: "),
        ('{"max_rows": "8"}', "max_rows: "),
        ('{"max_rows": 1000000}', "max_rows: "),
        ('{"buckets": []}', "ascend"),
        ('{"buckets": [4, 2]}', "ascend"),
        ('{"buckets": [1, 2], "max_rows": 4}', "must be max_rows"),
        ('{"max_wait_ms": -1}', "max_wait_ms: "),
        ('{"max_queue_ms": NaN}', "max_queue_ms: "),
        ('{"pad": {"x": null}}', "pad: x: "),
    ],
)
def test_read_batching_options__a_wrong_file__names_the_field(
    tmp_path: Path, text: str, reason: str
) -> None:
    (tmp_path / "batching.json").write_text(text)
    with pytest.raises(MlctlError, match=reason) as caught:
        read_batching_options(tmp_path / "batching.json")
    assert caught.value.code is ErrorCode.INVALID_INPUT
    assert str(tmp_path) not in caught.value.message


def sequences(root: Path) -> SourceModel:
    """`tiny` for rows of any length: zeros beyond a row's end change nothing of its answer."""
    source = onnx_source(root)
    model = onnx.load(str(source.model_path))
    for tensor in (*model.graph.input, *model.graph.output):
        tensor.type.tensor_type.shape.dim[1].dim_param = "length"
    onnx.save(model, str(source.model_path))
    specs = [
        TensorSpec(name=name, dtype=Datatype.FP32, shape=(DYNAMIC, DYNAMIC)) for name in ("x", "y")
    ]
    return replace(source, signature=Signature(inputs=(specs[0],), outputs=(specs[1],)))


def made(home: Path, wanted: dict[str, object]) -> VerifiedBundle:
    home.mkdir(exist_ok=True)
    catalog = MemoryCatalog([sequences(home / "registered")])
    rows = np.random.default_rng(1).standard_normal((64, LENGTH), dtype=np.float32)
    data = save_rows(home / "rows.npz", {"x": rows})
    (home / "batching.json").write_text(json.dumps(wanted))
    options = OptimizeOptions(batching_options=read_batching_options(home / "batching.json"))
    recipes = select(["fp32"], Target.CPU)
    return optimize("tiny", data, catalog=catalog, options=options, recipes=recipes).bundle


async def test_batching__in_the_bundle__is_served(home: Path) -> None:
    wanted = {"max_rows": 6, "pad": {"x": 0}, "max_wait_ms": 200, "max_queue_ms": 900}
    bundle = made(home, wanted)
    batching = bundle.manifest.batching
    assert (batching.max_rows, batching.buckets) == (6, (1, 2, 4, 6))

    host = ServedModel(bundle, ServerSettings(), registry=CollectorRegistry())
    await host.start()
    limits = host.limits
    assert limits is not None
    assert (limits.max_rows, limits.max_wait, limits.max_queue) == (6, 0.2, 0.9)
    given = [np.full((1, length), length, np.float32) for length in (3, 5, 8)]
    answers = await asyncio.gather(*(host.infer({"x": x}) for x in given))
    assert {answer.batch_rows for answer in answers} == {3}
    for x, answer in zip(given, answers, strict=True):
        np.testing.assert_allclose(answer.outputs["y"], expected(x), rtol=1e-5)
    await host.stop()


def test_padding__that_changes_answers__is_rejected_before_registration(home: Path) -> None:
    with pytest.raises(MlctlError, match="'y' padded, of the golden rows") as caught:
        made(home, {"pad": {"x": 1}})
    assert caught.value.code is ErrorCode.PARITY_FAILED
    assert list((home / "bundles").iterdir()) == []


@pytest.mark.parametrize(
    ("dtype", "fitting", "others"),
    [
        (Datatype.INT64, (0, -1, 2.0), (0.5, 2**63, 1e30)),
        (Datatype.UINT8, (255,), (256, -1)),
        (Datatype.BOOL, (0, 1), (2,)),
        (Datatype.FP16, (0.1, -65504), (70_000, 10**400)),
        (Datatype.BYTES, (), (0,)),
    ],
)
def test_padding__a_value_outside_the_datatype__is_rejected(
    dtype: Datatype, fitting: tuple[float, ...], others: tuple[float, ...]
) -> None:
    spec = TensorSpec(name="x", dtype=dtype, shape=(DYNAMIC, DYNAMIC))
    signature = Signature(inputs=(spec,), outputs=(spec,))
    for value in fitting:
        BatchingOptions(pad={"x": value}).check(signature)
    for value in others:
        with pytest.raises(MlctlError, match=f"not a value of 'x', which has {dtype}") as caught:
            BatchingOptions(pad={"x": value}).check(signature)
        assert caught.value.code is ErrorCode.INVALID_INPUT


def test_padding__of_an_input_without_length__is_rejected(
    onnx_catalog: MemoryCatalog, tmp_path: Path
) -> None:
    with pytest.raises(MlctlError, match="pad: 'x' is not an input of shape") as caught:
        optimize(
            "tiny",
            tmp_path / "never read",
            catalog=onnx_catalog,
            options=OptimizeOptions(batching_options=BatchingOptions(pad={"x": 0})),
        )
    assert caught.value.code is ErrorCode.INVALID_INPUT
