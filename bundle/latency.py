"""The edges in ms of a server's latency histograms, which gates use as limits."""

from __future__ import annotations

# The limits of common use cases (see docs/gates.md) are edges, so they are exact.
SERVED_EDGES_MS: tuple[float, ...] = (
    1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 75.0, 100.0, 150.0, 200.0, 300.0,
    400.0, 500.0, 750.0, 1000.0, 1500.0, 2000.0, 3000.0, 5000.0, 10_000.0, 15_000.0, 20_000.0,
    30_000.0, 60_000.0,
)  # fmt: skip
# Times from a request to the first token of its answer, and of each token after it.
FIRST_TOKEN_EDGES_MS: tuple[float, ...] = (
    5.0, 10.0, 25.0, 50.0, 100.0, 200.0, 300.0, 500.0, 750.0, 1000.0, 1500.0, 2000.0, 3000.0,
    5000.0, 7500.0, 10_000.0, 20_000.0, 30_000.0,
)  # fmt: skip
TOKEN_EDGES_MS: tuple[float, ...] = (
    1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 75.0, 100.0, 150.0, 200.0, 300.0, 500.0, 750.0,
    1000.0,
)  # fmt: skip
TTFT_METRIC = "mlctl_time_to_first_token_seconds"
TPOT_METRIC = "mlctl_time_per_output_token_seconds"
