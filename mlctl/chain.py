"""The steps of the chain as functions; torch, MLflow and BentoML are imported where they work."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mlctl.optimize.inputs.prepare import OptimizeOptions
from mlctl.optimize.variants.goals import Goals
from mlctl.rollout.client import deployments
from mlctl.rollout.client.rendering import require_promoted
from mlctl.rollout.client.revisions import find_revision
from mlctl.rollout.client.traffic import check_promotion
from mlctl.rollout.domain.spec import DeploymentSettings, RolloutSpec
from mlctl.rollout.journal.records import Deployment, Rollout

if TYPE_CHECKING:
    from mlctl.bento.packaging import BuiltBento
    from mlctl.optimize.pipeline import OptimizeResult

__all__ = ["build", "down", "optimize", "promote", "rollback", "status", "up"]

down = deployments.down
rollback = deployments.rollback
status = deployments.status


def optimize(
    model: str,
    data: str | Path,
    *,
    goals: Goals | None = None,
    options: OptimizeOptions | None = None,
    recipes: Sequence[str] | None = None,
) -> OptimizeResult:
    """Optimize a registered model on the rows in `data` and register the best variant.

    `model` and `data` are as for `mlctl optimize`; without `recipes` every recipe of the device is
    tried. The result has the variants with their verdicts (`judged`), the `digest`, the registered
    version (`published.version`, `published.uri`) and the `report` as HTML. Raises NOTHING_PASSED
    if no variant meets `goals`.
    """
    from mlctl.optimize.pipeline import optimize as run
    from mlctl.optimize.recipes.discovery import select
    from mlctl.registry.mlflow_catalog import MlflowCatalog

    options = options or OptimizeOptions()
    chosen = None if recipes is None else select(recipes, options.target)
    return run(model, data, catalog=MlflowCatalog(), goals=goals, options=options, recipes=chosen)


def build(
    *models: str, version: str | None = None, name: str | None = None, force: bool = False
) -> BuiltBento:
    """Build a Bento from optimized models, named as for `mlctl build`, or find it in the store.

    The result has its `tag`, `digest` and `path`. Raises MODEL_NOT_FOUND; INVALID_INPUT for several
    models without a `name`.
    """
    from mlctl.bento.registered import build_registered, select, split_stages
    from mlctl.registry.mlflow_catalog import MlflowCatalog

    catalog = MlflowCatalog()
    stages, maps = split_stages(models, ())
    published = [each.published for each in select(catalog, stages, version)]
    made, _ = build_registered(catalog, published, name, None, force=force, maps=maps)
    return made


def up(
    name: str, bento: str, port: int = 8000, *, settings: DeploymentSettings | None = None
) -> Deployment:
    """Start the deployment `name` that serves `bento`, and return it when it answers.

    Raises PORT_TAKEN, DEPLOYMENT_EXISTS, and NOT_READY if the Bento does not start.
    """
    return deployments.up(name, find_revision(bento), port, settings=settings)


def promote(
    name: str, bento: str, spec: RolloutSpec | None = None, *, check: bool = True
) -> Rollout:
    """Move the traffic of `name` to `bento` step by step, and return the rollout once promoted.

    With `check` it fails before it starts if the proved score is clearly worse, or if today's
    traffic is too little for a verdict. Raises ROLLED_BACK or INCONCLUSIVE if the rollout ends so,
    with the gate and its numbers.
    """
    revision, spec = find_revision(bento), spec or RolloutSpec()
    if check:
        check_promotion(name, revision, spec)
    rollout = deployments.promote(name, revision, spec)
    for _event in deployments.follow(name, rollout):
        pass
    ended = next(each for each in deployments.history(name) if each.id == rollout)
    require_promoted(ended)
    return ended
