import json
import re
from pathlib import Path

import numpy as np
import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.optimize.data import RowLimits
from mlctl.optimize.inputs.prepare import OptimizeOptions
from mlctl.optimize.pipeline import optimize
from mlctl.optimize.plan import OptimizePlan, make_plan
from mlctl.optimize.recipes.base import Target
from mlctl.optimize.recipes.discovery import select
from mlctl.optimize.variants.goals import Goals, Prefer
from tests.support.memory_catalog import MemoryCatalog
from tests.support.sources import onnx_source, save_rows

RECIPES = select(["fp32", "fp16"], Target.CPU)
GOALS = Goals(prefer=Prefer.SIZE)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rows = np.random.default_rng(1).standard_normal((64, 4), dtype=np.float32)
    return save_rows(tmp_path / "rows.npz", {"x": rows})


def plan(
    catalog: MemoryCatalog, data: Path, options: OptimizeOptions | None = None
) -> OptimizePlan:
    return make_plan(
        "tiny",
        data,
        catalog=catalog,
        goals=GOALS,
        options=options or OptimizeOptions(),
        recipes=RECIPES,
    )


def to_do(found: OptimizePlan) -> list[str]:
    return [step.name for step in found.steps if not step.cached]


def test_plan__at_first__lists_everything_and_does_nothing(
    onnx_catalog: MemoryCatalog, data: Path, home: Path
) -> None:
    found = plan(onnx_catalog, data)
    steps = ["export"]
    steps += ["fp32: build", "fp32: judge", "fp16: build", "fp16: judge", "latency", "publish"]
    assert [step.name for step in found.steps] == steps
    assert to_do(found) == steps
    assert (found.calibration_rows, found.held_out_rows) == (16, 48)
    assert list((home / "cache" / "optimize").iterdir()) == []
    assert onnx_catalog.published == []
    assert found.time is not None
    assert re.fullmatch(
        r"(about .+|.+ to .+), and the export and searches that follow from it, by \S+ ms for a "
        "row of the source model",
        found.time,
    )


def test_plan__after_a_run__is_cached(onnx_catalog: MemoryCatalog, data: Path, home: Path) -> None:
    optimize("tiny", data, catalog=onnx_catalog, goals=GOALS, recipes=RECIPES)
    done = plan(onnx_catalog, data)
    assert to_do(done) == ["publish"]
    assert (done.time or "").startswith("about 1 s, by ")

    other = OptimizeOptions(sampling=RowLimits(held_out_rows=20))
    assert "export" in to_do(plan(onnx_catalog, data, other))

    for measured in (home / "cache" / "optimize").glob("*/measured.json"):
        measured.unlink()
    found = plan(onnx_catalog, data)
    assert to_do(found) == ["fp32: judge", "fp16: judge", "publish"]


def test_plan__recipes_of_another_target__are_listed_as_excluded(
    onnx_catalog: MemoryCatalog, data: Path
) -> None:
    here = plan(onnx_catalog, data)
    assert here.missing is None
    assert here.excluded["int8-trt"] == "cuda, tensorrt"
    assert "fp32" not in here.excluded
    there = plan(onnx_catalog, data, OptimizeOptions(target=Target.TENSORRT))
    assert "int8-static" in there.excluded
    assert "int8-trt" not in there.excluded


def test_plan__a_recipe_that_may_search__says_so(onnx_catalog: MemoryCatalog, data: Path) -> None:
    recipes = select(["fp32", "int4"], Target.CPU)
    found = make_plan(
        "tiny", data, catalog=onnx_catalog, goals=GOALS, options=OptimizeOptions(), recipes=recipes
    )
    assert [step.name for step in found.steps if step.searches] == ["int4: build"]


def test_plan__a_mistake__is_found(onnx_catalog: MemoryCatalog, data: Path, tmp_path: Path) -> None:
    with pytest.raises(MlctlError) as caught:
        plan(onnx_catalog, data, OptimizeOptions(metric="accuracy"))
    assert caught.value.code is ErrorCode.INVALID_INPUT
    with pytest.raises(MlctlError) as caught:
        plan(MemoryCatalog([onnx_source(tmp_path / "other")]), tmp_path / "none.npz")
    assert "none.npz" in caught.value.message


def test_plan__document__is_json(onnx_catalog: MemoryCatalog, data: Path) -> None:
    document = plan(onnx_catalog, data).as_dict()
    assert document["steps"][-1] == {"name": "publish", "cached": False, "searches": False}
    assert document["seconds"].keys() == {"low", "high"}
    assert json.loads(json.dumps(document)) == {**document, "steps": list(document["steps"])}
