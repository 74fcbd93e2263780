"""What a page draws, read from `report.json` (`optimize.evidence.report_document`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter

from optimize.goals import Goals
from optimize.variant import Measured


class VariantVerdict(StrEnum):
    """What became of a variant."""

    CHOSEN = "chosen"
    PASSES = "passes"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class VariantRecord:
    """One variant; `measured` is None if it failed."""

    recipe: str
    precision: str
    passed: bool
    chosen: bool
    reason: str
    measured: Measured | None

    @property
    def verdict(self) -> VariantVerdict:
        if self.measured is None:
            return VariantVerdict.FAILED
        if self.chosen:
            return VariantVerdict.CHOSEN
        return VariantVerdict.PASSES if self.passed else VariantVerdict.REFUSED


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """The registered model."""

    uri: str
    run_id: str
    sha256: str


@dataclass(frozen=True, slots=True)
class DataRecord:
    """The rows: `rows` in all, some to calibrate and others, held out, to judge."""

    sha256: str
    rows: int
    calibration_rows: int
    held_out_rows: int
    labelled: bool


@dataclass(frozen=True, slots=True)
class Conditions:
    """The machine that measured; `threads` for each run of the model."""

    processor: str
    cores: int
    threads: int
    libraries: str


@dataclass(frozen=True, slots=True)
class PlaceRecord:
    """What judged, on which `device` if it is a GPU; `missing` says why it is not the target."""

    provider: str
    missing: str | None
    device: str | None = None


@dataclass(frozen=True, slots=True)
class OptimizeReport:
    """All that a page draws; `transform` is its digest."""

    source: SourceRecord
    data: DataRecord
    transform: str | None
    goals: Goals
    target: str
    row_independent: bool
    metric: str | None
    source_score: float | None
    variants: tuple[VariantRecord, ...]
    conditions: Conditions
    place: PlaceRecord

    @property
    def chosen(self) -> VariantRecord | None:
        return next((item for item in self.variants if item.chosen), None)

    @property
    def measured(self) -> tuple[tuple[VariantRecord, Measured], ...]:
        """The variants that did not fail, each with its numbers."""
        return tuple((item, item.measured) for item in self.variants if item.measured is not None)

    @property
    def timed(self) -> bool:
        """Whether every variant that did not fail has latencies."""
        return bool(self.measured) and all(found.latency for _, found in self.measured)

    @property
    def lower_is_better(self) -> bool:
        """Whether the metric falls as models improve, as told by a variant whose score moved."""
        scores = (found.score for _, found in self.measured)
        return any(
            score is not None and (score.value - score.reference) * score.drop.value > 0
            for score in scores
        )


def read_report(document: Mapping[str, Any]) -> OptimizeReport:
    """The report in `document`, as a value or as JSON gave it back; ValidationError if none."""
    return _adapter().validate_python(document)


@lru_cache
def _adapter() -> TypeAdapter[OptimizeReport]:
    return TypeAdapter(OptimizeReport)
