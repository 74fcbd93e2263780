"""The exported source model: its graph, its answers on held-out rows, and its proofs.

One cache entry holds all of it, so that a repeated run needs no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict

from mlctl.bundle.manifest import MODEL_NAME
from mlctl.bundle.tensors import Signature
from mlctl.core.entries import Key, hash_key
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.files import write_atomic
from mlctl.optimize.cache import fetch_or_build, versions
from mlctl.optimize.data import Rows
from mlctl.optimize.inputs.batching import DEFAULT
from mlctl.optimize.inputs.estimators import EstimatorReference
from mlctl.optimize.inputs.prepare import Prepared
from mlctl.optimize.proofs.baseline import Baseline, run_rows
from mlctl.optimize.proofs.checks import check_finite, check_graph, check_parity, check_source
from mlctl.optimize.proofs.export import OPSET
from mlctl.optimize.proofs.given_rows import check_given_rows, graph_fails
from mlctl.optimize.proofs.independence import beside_longest, is_row_independent
from mlctl.optimize.proofs.probing import ProbeResult, probe_model
from mlctl.optimize.proofs.reference import Reference, load_reference
from mlctl.optimize.proofs.splits import SplitCheck, check_splits, near_splits
from mlctl.registry.catalog import ModelFormat
from mlctl.services.model.golden import load_golden, save_golden
from mlctl.services.model.run_errors import RunError
from mlctl.services.model.session import open_session

VERSION = 13
_LIBRARIES = (
    *(
        "torch",
        "transformers",
        "onnxruntime-genai",
        "onnx",
        "onnxscript",
        "onnxruntime",
        "onnxruntime-gpu",
    ),
    *("scikit-learn", "skl2onnx", "onnxmltools", "xgboost", "xgboost-cpu", "lightgbm"),
    "catboost",
)
EXAMPLE_ROWS = 3

_ANSWERS_NAME = "answers.npz"
_FACTS_NAME = "facts.json"


@dataclass(frozen=True, slots=True)
class ExportedModel:
    """A graph that is proved to be the source model's; `key` names it in the cache."""

    prepared: Prepared
    graph: Path
    opset: int
    baseline: Baseline
    splits: SplitCheck | None
    probes: ProbeResult
    key: str
    reused: bool

    @property
    def signature(self) -> Signature:
        """The graph's tensors."""
        return self.prepared.source.signature

    @property
    def calibration(self) -> Rows:
        return self.prepared.calibration


class _Facts(BaseModel):
    model_config = ConfigDict(extra="forbid")

    opset: int
    row_independent: bool
    splits: SplitCheck | None
    probes: ProbeResult


def export_source(prepared: Prepared) -> ExportedModel:
    """Export, check and run the source model, or take the results from the cache.

    EXPORT_FAILED if the graph cannot be proved to be the model; UNSUPPORTED_MODEL if the model
    does not run or answers with NaN; INVALID_INPUT if the metric does not fit its answers.
    """
    key = export_key(prepared)
    entry = fetch_or_build(key, lambda directory: _build(directory, prepared))
    facts = _Facts.model_validate_json((entry.root / _FACTS_NAME).read_bytes())
    _, outputs = load_golden(entry.root / _ANSWERS_NAME)
    ordered = {spec.name: outputs[spec.name] for spec in prepared.source.signature.outputs}
    baseline = Baseline(
        prepared.held_out,
        ordered,
        facts.row_independent,
        prepared.metric,
        prepared.batching_options,
    )
    _ = baseline.score  # fails before any work on variants if the metric does not fit
    return ExportedModel(
        prepared=prepared,
        graph=entry.root / MODEL_NAME,
        opset=facts.opset,
        baseline=baseline,
        splits=facts.splits,
        probes=facts.probes,
        key=hash_key(key),
        reused=entry.reused,
    )


def export_key(prepared: Prepared) -> Key:
    """Return what the graph and the answers depend on."""
    transform = prepared.transform
    return {
        "kind": "export",
        "version": VERSION,
        "source": prepared.source.sha256,
        "data": prepared.raw.sha256,
        "calibration_rows": prepared.calibration.count,
        "held_out_rows": prepared.held_out.count,
        "transform": None if transform is None else transform.sha256,
        "opset": OPSET,
        "libraries": versions(*_LIBRARIES),
    }


def _build(directory: Path, prepared: Prepared) -> None:
    reference = load_reference(prepared.source)
    try:
        _prove(directory, prepared, reference)
    except MlctlError as error:
        # A proof knows rows and outputs; users know their model by the names of its steps.
        if not isinstance(reference, EstimatorReference):
            raise
        if reference.name.partition(" ")[0] in error.message:
            raise
        message = f"{reference.name}: {error.message}"
        raise MlctlError(error.code, message, error.hint) from error


def _prove(directory: Path, prepared: Prepared, reference: Reference) -> None:
    source, held_out = prepared.source, prepared.held_out
    check_source(reference, source.signature, held_out)
    calibration = prepared.calibration
    example = calibration.take(np.arange(EXAMPLE_ROWS) % calibration.count)
    reference.export(directory, example.inputs)
    graph = directory / MODEL_NAME
    torch = source.format in (ModelFormat.PYTORCH, ModelFormat.TRANSFORMERS)
    expected = OPSET if torch else None
    opset = check_graph(graph, source.signature, expected)
    session = open_session(graph)
    check_parity(reference, session, source.signature, held_out)
    independent = is_row_independent(reference, held_out)
    if prepared.transform is not None:
        raw = prepared.raw.held_out.inputs
        prepared.transform.check_pure(raw, reference.run)
        if source.format is ModelFormat.TRANSFORMERS:
            raw = beside_longest(raw)
        independent = independent and prepared.transform.is_row_independent(raw, reference.run)
    if source.format is ModelFormat.TRANSFORMERS and not independent:
        raise MlctlError(
            ErrorCode.UNSUPPORTED_MODEL,
            "the model's answer to a text depends on the longer texts beside it: its layers see "
            "the padding, although the mask excludes it",
            "Use an encoder that masks its padding, such as BERT; convolutions over tokens do not.",
        )
    batch = DEFAULT.batching(row_independent=independent).max_rows
    outputs = run_rows(reference.run, held_out, batch)
    check_finite(outputs)
    try:
        answers = run_rows(session.run, held_out, batch)
    except RunError as error:
        raise graph_fails(error) from error
    near = near_splits(graph, held_out.inputs) if source.format.is_estimator else None
    check_given_rows(held_out.inputs, outputs, answers, near)
    probes = ProbeResult()
    if prepared.transform is None:  # whose inputs are not the graph's
        probes = probe_model(
            *(reference, session, graph, source.signature, (held_out, calibration)),
            table=source.format.is_estimator,
            independent=independent,
        )
    save_golden(directory / _ANSWERS_NAME, held_out.head(1).inputs, outputs)
    splits = check_splits(near, outputs, answers)
    facts = _Facts(opset=opset, row_independent=independent, splits=splits, probes=probes)
    write_atomic(directory / _FACTS_NAME, facts.model_dump_json().encode())
