"""The inputs of an optimization: the model, its rows, the user's transform and metric."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from mlctl.bundle.tensors import NO_MISSING, MissingValues, Signature
from mlctl.optimize.data import EvalData, RowLimits, Rows, load_data
from mlctl.optimize.data.source import ColumnMap
from mlctl.optimize.inputs.batching import DEFAULT, BatchingOptions
from mlctl.optimize.inputs.estimators import with_outputs
from mlctl.optimize.inputs.text.encoder import read_text_encoder
from mlctl.optimize.inputs.transforms.transform import SourceTransform, read_transform
from mlctl.optimize.metrics.scores import Metric, load_metric, require_labels
from mlctl.optimize.recipes.base import Target
from mlctl.registry.catalog import ModelFormat, SourceModel

DEFAULT_METRIC = "accuracy"


@dataclass(frozen=True, slots=True)
class OptimizeOptions:
    """Options beside the goals.

    Attributes:
        target: the device that the variants are made for.
        metric: a metric's name, or a function as MODULE:NAME; None, by the labels.
        sampling: how many rows calibrate and judge.
        transform: folder of the code before and after the model.
        batching_options: sizes and waits of batches that the bundle asks for.
        allow_pickle: load a model that is a pickle, which can run code.
        columns: the columns of the data that feed each input.
        against_champion: judge the variants by the @champion's score, too.
        fresh: do not use latencies of an earlier run.
        max_seconds: the time that all may take; what promises least is left out. The export, the
            baseline and the latencies are never left out, and may take longer. None for no limit.
    """

    target: Target = Target.CPU
    metric: str | None = None
    sampling: RowLimits = field(default_factory=RowLimits)
    transform: Path | None = None
    batching_options: BatchingOptions = DEFAULT
    allow_pickle: bool = False
    columns: ColumnMap = field(default_factory=dict)
    against_champion: bool = False
    fresh: bool = False
    max_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A registered model and rows that fit it.

    `raw` are the rows as a caller of the API sends them; `calibration` and `held_out` are the
    model's inputs that the transform makes of them.
    """

    source: SourceModel
    raw: EvalData
    calibration: Rows
    held_out: Rows
    transform: SourceTransform | None
    metric: Metric | None
    batching_options: BatchingOptions = DEFAULT

    @property
    def missing(self) -> MissingValues:
        """The inputs whose values may be missing; none of those that a transform takes."""
        return NO_MISSING if self.transform is not None else self.source.missing

    @property
    def api_signature(self) -> Signature:
        """The tensors that clients exchange."""
        return self.source.signature if self.transform is None else self.transform.api_signature


def prepare(source: SourceModel, data: str | Path, options: OptimizeOptions) -> Prepared:
    """Read the rows for a resolved model; raises what `load_data` raises.

    INVALID_INPUT also for a metric without labels, an invalid transform, and padding that
    does not fit the inputs.
    """
    source = with_outputs(source)
    transform = None
    if source.format is ModelFormat.TRANSFORMERS:
        encoder = read_text_encoder(source)
        source = encoder.source
        if options.transform is None:
            with tempfile.TemporaryDirectory() as folder:
                encoder.write_transform(Path(folder))
                transform = read_transform(Path(folder), source.signature)
    if options.transform is not None:
        transform = read_transform(options.transform, source.signature)
    signature = source.signature if transform is None else transform.data_signature
    options.batching_options.check(signature)
    raw = load_data(
        data,
        signature,
        options.sampling,
        NO_MISSING if transform is not None else source.missing,
        options.columns,
        options.batching_options.pad,
    )
    metric = _metric(options.metric, raw.held_out)
    return Prepared(
        source,
        raw,
        _transformed(raw.calibration, transform),
        _transformed(raw.held_out, transform),
        transform,
        metric,
        options.batching_options,
    )


def _metric(name: str | None, rows: Rows) -> Metric | None:
    if name is None and rows.labels is None:
        return None
    metric = load_metric(name or DEFAULT_METRIC, labelled=rows.labels is not None)
    require_labels(rows, metric)
    return metric


def _transformed(rows: Rows, transform: SourceTransform | None) -> Rows:
    if transform is None:
        return rows
    return Rows(transform.preprocess(rows.inputs), rows.labels)
