"""The exported source model: its graph, its answers on held-out rows, and what was proved.

One cache entry holds all of it, so that a repeated run needs no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict

from bundle.clock import Clock
from bundle.files import write_atomic
from bundle.manifest import MODEL_NAME
from optimize.cache import Key, fetch_or_build, hash_key, versions
from optimize.checks import check_finite, check_graph, check_parity, is_row_independent
from optimize.data import EvalData, Rows, row_count
from optimize.export import OPSET
from optimize.judge import Baseline, labelled_accuracy, run_rows_within
from optimize.reference import load_reference
from registry.catalog import Flavor, SourceModel
from services.golden import load_golden, save_golden
from services.session import open_session

VERSION = 1
EXAMPLE_ROWS = 3

_ANSWERS_NAME = "answers.npz"
_FACTS_NAME = "facts.json"


@dataclass(frozen=True, slots=True)
class Exported:
    """A graph that was proved to be the source model's; `key` names it in the cache."""

    source: SourceModel
    data: EvalData
    graph: Path
    opset: int
    baseline: Baseline
    calibration: Rows
    key: str
    reused: bool


class _Facts(BaseModel):
    model_config = ConfigDict(extra="forbid")

    opset: int
    row_independent: bool
    calibration_rows: int


def export_source(source: SourceModel, data: EvalData, clock: Clock) -> Exported:
    """Export, check and run the source model, or take all that from the cache.

    EXPORT_FAILED if the graph is not provably the model; UNSUPPORTED_MODEL if the
    model itself does not run, or answers with NaN.
    """
    key = _key(source, data)
    entry = fetch_or_build(key, lambda directory: _build(directory, source, data, clock))
    facts = _Facts.model_validate_json((entry.root / _FACTS_NAME).read_bytes())
    _, outputs = load_golden(entry.root / _ANSWERS_NAME)
    rows = data.held_out.head(row_count(outputs))
    ordered = {spec.name: outputs[spec.name] for spec in source.signature.outputs}
    return Exported(
        source=source,
        data=data,
        graph=entry.root / MODEL_NAME,
        opset=facts.opset,
        baseline=Baseline(rows, ordered, facts.row_independent),
        calibration=data.calibration.head(facts.calibration_rows),
        key=hash_key(key),
        reused=entry.reused,
    )


def _key(source: SourceModel, data: EvalData) -> Key:
    return {
        "kind": "export",
        "version": VERSION,
        "source": source.sha256,
        "data": data.sha256,
        "opset": OPSET,
        "libraries": versions("torch", "onnx", "onnxscript", "onnxruntime", "onnxruntime-gpu"),
    }


def _build(directory: Path, source: SourceModel, data: EvalData, clock: Clock) -> None:
    reference = load_reference(source)
    example = data.calibration.take(np.arange(EXAMPLE_ROWS) % data.calibration.count)
    reference.export(directory, example.inputs)
    graph = directory / MODEL_NAME
    asked = None if source.flavor is Flavor.ONNX else OPSET
    opset = check_graph(graph, source.signature, asked)
    check_parity(reference, open_session(graph), data.held_out)
    independent = is_row_independent(reference, data.held_out)
    batch = Baseline(data.held_out, {}, independent).batch
    outputs = run_rows_within(reference.run, data.held_out, batch, clock)
    rows = data.held_out.head(row_count(outputs))
    check_finite(outputs)
    labelled_accuracy(outputs, rows)
    save_golden(directory / _ANSWERS_NAME, rows.inputs, outputs)
    facts = _Facts(
        opset=opset,
        row_independent=independent,
        calibration_rows=min(rows.count, data.calibration.count),
    )
    write_atomic(directory / _FACTS_NAME, facts.model_dump_json().encode())
