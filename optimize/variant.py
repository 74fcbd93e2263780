"""What was measured of one variant, as a value that survives the cache unchanged."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from bundle.files import write_atomic
from bundle.manifest import canonical_json
from optimize.latency import BatchLatency
from optimize.parity import Parity
from optimize.recipes.base import Precision

MEASURED_NAME = "measured.json"


@dataclass(frozen=True, slots=True)
class Measured:
    """The numbers of one variant over `rows` held-out rows; accuracy only where rows have labels.

    `accuracy_drop` is the source model's accuracy less this one's; `size_bytes` counts
    the model file and its data file.
    """

    rows: int
    opset: int
    size_bytes: int
    parity: Parity
    accuracy: float | None
    accuracy_drop: float | None
    latency: tuple[BatchLatency, ...]

    @property
    def p95_ms(self) -> float:
        """The 95th percentile for a single row."""
        return self.latency[0].p95_ms

    @property
    def rows_per_second(self) -> float:
        """The best throughput of any batch size."""
        return max(batch.rows_per_second for batch in self.latency)


@dataclass(frozen=True, slots=True)
class Variant:
    """One recipe's result: `measured` and the `model` directory, or the `failure`."""

    recipe: str
    precision: Precision
    measured: Measured | None
    model: Path | None = None
    failure: str | None = None


def save_measured(measured: Measured, directory: Path) -> None:
    """Write the numbers beside the model they belong to."""
    write_atomic(directory / MEASURED_NAME, canonical_json(asdict(measured)))


def load_measured(directory: Path) -> Measured:
    """Read what `save_measured` wrote."""
    return TypeAdapter(Measured).validate_json((directory / MEASURED_NAME).read_bytes())
