"""Optimizing for a device that is not on this machine: judged here, timed nowhere, said so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.optimize.inputs.prepare import OptimizeOptions
from mlctl.optimize.pipeline import NothingPassedError, OptimizeResult, optimize
from mlctl.optimize.recipes.base import Target
from mlctl.optimize.recipes.discovery import select
from mlctl.optimize.variants.goals import Goals, Prefer
from mlctl.registry.mlflow_catalog import MlflowCatalog
from mlctl.services.model.scorer import Scorer
from mlctl.services.online.settings import ServerSettings
from tests.optimize.conftest import images
from tests.support.sources import save_rows

pytestmark = pytest.mark.slow

# The weights are random, so that the classes are close together.
LOOSE = Goals(min_agreement=0.0, min_centred_cosine=0.5)


def run(
    target: Target, catalog: MlflowCatalog, tmp_path: Path, goals: Goals | None = None
) -> OptimizeResult:
    data = save_rows(tmp_path / "rows.npz", {"x": images()})
    return optimize(
        "Digits", data, catalog=catalog, goals=goals, options=OptimizeOptions(target=target)
    )


def test_tensorrt__every_recipe__is_accepted_by_the_importer(
    catalog: MlflowCatalog, tmp_path: Path
) -> None:
    result = run(Target.TENSORRT, catalog, tmp_path, LOOSE)
    found = {item.variant.recipe: item.variant for item in result.judged}
    assert list(found) == [recipe.name for recipe in select(None, Target.TENSORRT)]
    for recipe, variant in found.items():
        measured = variant.measured
        assert measured is not None, (recipe, variant.failure)
        assert (measured.importer or "").startswith("accepted by the importer of tensorrt-rtx")
        assert measured.latency == ()
        assert measured.provider == "cpu"
    assert "latency was not measured" in result.chosen.reason
    assert result.bundle.manifest.variant.target == "tensorrt"


def test_target__another_device__is_served_only_on_request(
    catalog: MlflowCatalog, tmp_path: Path
) -> None:
    data = save_rows(tmp_path / "rows.npz", {"x": images()})
    result = optimize(
        "Digits",
        data,
        catalog=catalog,
        options=OptimizeOptions(target=Target.TENSORRT),
        recipes=select(["int8-trt"], Target.TENSORRT),
        goals=LOOSE,
    )
    with pytest.raises(MlctlError) as caught:
        Scorer.open(result.bundle, ServerSettings())
    assert caught.value.code is ErrorCode.PROVIDER_UNAVAILABLE
    scorer = Scorer.open(result.bundle, ServerSettings(provider="cpu"))
    assert np.isfinite(scorer.run({"x": images()[:3]})["logits"]).all()


def test_target__missing__fails_a_latency_goal(catalog: MlflowCatalog, tmp_path: Path) -> None:
    with pytest.raises(NothingPassedError, match="its latency was not measured"):
        run(Target.CUDA, catalog, tmp_path, Goals(max_p95_ms=1000.0, prefer=Prefer.LATENCY))
