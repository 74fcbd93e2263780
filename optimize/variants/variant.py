"""The measured numbers of one variant, as values that the cache stores and restores unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from mlctl.core.canonical import canonical_json
from mlctl.core.files import write_atomic
from mlctl.optimize.metrics.latency import BatchLatency
from mlctl.optimize.metrics.parity import Parity
from mlctl.optimize.metrics.scores import MetricResult
from mlctl.optimize.recipes.base import Details, Precision

MEASURED_NAME = "measured.json"
DETAILS_NAME = "details.json"
TIMINGS_NAME = "timings.json"


@dataclass(frozen=True, slots=True)
class Timings:
    """One measurement of all variants: latencies, or why there are none, by recipe."""

    latencies: Mapping[str, tuple[BatchLatency, ...]]
    failures: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Measured:
    """The numbers of one variant on `rows` held-out rows; `score` only if they have labels.

    `size_bytes` counts the model file and its data file. `latency` is empty where the target
    is not on this machine. `provider` ran the variant. `importer` is the
    verdict of TensorRT's importer. `contaminated_relative_l2` is the relative L2 to the
    source's answers beside outlier rows; `row_independent` follows from it. It is None if the
    source's own rows depend on each other.

    Only language models have `prompt_tokens`, the length of the prompt that was timed. Their
    `latency` counts tokens as rows: first a whole answer, then its first token alone.
    """

    rows: int
    opset: int
    size_bytes: int
    parity: Parity
    score: MetricResult | None
    latency: tuple[BatchLatency, ...] = ()
    details: Details = field(default_factory=Details)
    provider: str = "cpu"
    importer: str | None = None
    row_independent: bool = True
    contaminated_relative_l2: float | None = None
    prompt_tokens: int | None = None

    @property
    def generates(self) -> bool:
        """Whether it is a variant of a language model."""
        return self.prompt_tokens is not None

    @property
    def first_token_ms(self) -> float | None:
        """The median time to the first token of a language model."""
        return self.latency[-1].median_ms if self.generates and self.latency else None

    @property
    def tokens_per_second(self) -> float | None:
        """The tokens of an answer per second, its prompt included; of a language model."""
        return self.latency[0].rows_per_second if self.generates and self.latency else None

    @property
    def p95_ms(self) -> float:
        """The 95th percentile for a single row, or for an answer of a language model."""
        return self.latency[0].p95_ms

    @property
    def rows_per_second(self) -> float:
        """The best throughput of any batch size."""
        return self.best_batch.rows_per_second

    @property
    def best_batch(self) -> BatchLatency:
        """The batch size with the highest throughput."""
        return max(self.latency, key=lambda batch: batch.rows_per_second)

    def proof(self) -> dict[str, Any]:
        """Return everything but latency: equal inputs give equal proofs."""
        found = {name: value for name, value in asdict(self).items() if name != "latency"}
        return {**found, "parity": self.parity.record()}

    def record(self) -> dict[str, Any]:
        """Return the proof with the latencies summarized."""
        speed = {
            "first_token_ms": self.first_token_ms,
            "tokens_per_second": self.tokens_per_second,
        }
        latency = [batch.summary() for batch in self.latency]
        return {**self.proof(), **(speed if self.generates else {}), "latency": latency}


@dataclass(frozen=True, slots=True)
class Variant:
    """One recipe's result: `measured` and the `model` directory, or the `failure`.

    A recipe that is not `applicable` found nothing to change in the model; `failure` says what.
    For one that was `skipped` no time was left.
    """

    recipe: str
    precision: Precision
    measured: Measured | None
    model: Path | None = None
    failure: str | None = None
    applicable: bool = True
    skipped: bool = False


def save_measured(measured: Measured, directory: Path) -> None:
    """Write the numbers of one variant, without latencies."""
    content = {**asdict(measured), "latency": []}
    write_atomic(directory / MEASURED_NAME, canonical_json(content))


def load_measured(directory: Path) -> Measured:
    """Read what `save_measured` wrote."""
    return TypeAdapter(Measured).validate_json((directory / MEASURED_NAME).read_bytes())


def save_timings(timings: Timings, directory: Path) -> None:
    """Write one measurement."""
    write_atomic(directory / TIMINGS_NAME, canonical_json(asdict(timings)))


def load_timings(directory: Path) -> Timings:
    """Read what `save_timings` wrote."""
    return TypeAdapter(Timings).validate_json((directory / TIMINGS_NAME).read_bytes())


def save_details(details: Details, directory: Path) -> None:
    """Write what the recipe decided beside the model."""
    write_atomic(directory / DETAILS_NAME, canonical_json(asdict(details)))


def load_details(directory: Path) -> Details:
    """Read what `save_details` wrote."""
    return TypeAdapter(Details).validate_json((directory / DETAILS_NAME).read_bytes())
