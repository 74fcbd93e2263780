"""The gate against the @champion: its score, as its evidence recorded it, on the same rows."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.optimize.inputs.prepare import Prepared
from mlctl.optimize.variants.goals import Goals
from mlctl.registry.catalog import CHAMPION, Catalog
from mlctl.registry.names import optimized_name

EVIDENCE_NAME = "evidence.json"


def judged_by_champion(goals: Goals, catalog: Catalog, prepared: Prepared) -> Goals:
    """Return the goals with the @champion's score as limit, less the drop that they allow.

    MODEL_NOT_FOUND without a @champion, INVALID_INPUT if it was judged by another metric or on
    other rows: such scores cannot be compared.
    """
    metric = prepared.metric
    assert metric is not None, "require_labels_for"
    published = catalog.find_optimized(f"{optimized_name(prepared.source.name)}@{CHAMPION}")
    with tempfile.TemporaryDirectory() as folder:
        bundle = catalog.fetch_bundle(published, Path(folder, "bundle"))
        data = json.loads(bundle.path(EVIDENCE_NAME).read_bytes())["data"]["sha256"]
    evidence = bundle.manifest.evidence
    if evidence.metric != metric.name or evidence.score is None or data != prepared.raw.sha256:
        on = "the same rows" if data == prepared.raw.sha256 else "other rows"
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"the score of {published.uri} (@{CHAMPION}) cannot be compared: it was judged by "
            f"{evidence.metric or 'parity'} on {on}, and this run by {metric.name}",
            "Give the rows, --eval-rows and --metric that it was optimized with, or a number "
            "as --min-accuracy.",
        )
    sign = 1.0 if metric.higher_is_better else -1.0
    return replace(goals, score_limit=evidence.score - sign * goals.accuracy_drop)
