"""What was proved and measured of one variant, as a value that survives the cache unchanged."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from bundle.files import write_atomic
from bundle.manifest import canonical_json
from optimize.metrics.latency import BatchLatency
from optimize.metrics.parity import Parity
from optimize.metrics.scores import MetricResult
from optimize.recipes.base import Details, Precision

MEASURED_NAME = "measured.json"
DETAILS_NAME = "details.json"


@dataclass(frozen=True, slots=True)
class Measured:
    """The numbers of one variant over `rows` held-out rows; `score` only where they have labels.

    `size_bytes` counts the model file and its data file. `latency` is empty where the
    variant's target is not on this machine; `provider` is what it was judged on (`emulated`
    by a twin graph where that has no kernels for it), and
    `importer` what TensorRT's importer said of it without a device. `joined_relative_l2` is
    how far answers are from the source's next to rows that no data has; it decides
    `row_independent`, and is None where the source's own rows influence each other.
    """

    rows: int
    opset: int
    size_bytes: int
    parity: Parity
    score: MetricResult | None
    latency: tuple[BatchLatency, ...]
    details: Details = field(default_factory=Details)
    provider: str = "cpu"
    emulated: bool = False
    importer: str | None = None
    row_independent: bool = True
    joined_relative_l2: float | None = None

    @property
    def p95_ms(self) -> float:
        """The 95th percentile for a single row."""
        return self.latency[0].p95_ms

    @property
    def rows_per_second(self) -> float:
        """The best throughput of any batch size."""
        return max(batch.rows_per_second for batch in self.latency)

    def proof(self) -> dict[str, Any]:
        """All but what a clock measured: the same inputs always give the same."""
        return {name: value for name, value in asdict(self).items() if name != "latency"}


@dataclass(frozen=True, slots=True)
class Variant:
    """One recipe's result: `measured` and the `model` directory, or the `failure`."""

    recipe: str
    precision: Precision
    measured: Measured | None
    model: Path | None = None
    failure: str | None = None


def save_measured(measured: Measured, directory: Path) -> None:
    """Write the numbers of one variant."""
    write_atomic(directory / MEASURED_NAME, canonical_json(asdict(measured)))


def load_measured(directory: Path) -> Measured:
    """Read what `save_measured` wrote."""
    return TypeAdapter(Measured).validate_json((directory / MEASURED_NAME).read_bytes())


def save_details(details: Details, directory: Path) -> None:
    """Write what the recipe decided beside the model."""
    write_atomic(directory / DETAILS_NAME, canonical_json(asdict(details)))


def load_details(directory: Path) -> Details:
    """Read what `save_details` wrote."""
    return TypeAdapter(Details).validate_json((directory / DETAILS_NAME).read_bytes())
