"""The edges in ms of a server's latency histogram, which gates use as limits."""

from __future__ import annotations

# The limits of common use cases (see docs/gates.md) are edges, so they are exact.
SERVED_EDGES_MS: tuple[float, ...] = (
    1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 75.0, 100.0, 150.0, 200.0, 300.0,
    400.0, 500.0, 750.0, 1000.0, 1500.0, 2000.0, 3000.0, 5000.0, 10_000.0, 15_000.0, 20_000.0,
    30_000.0, 60_000.0,
)  # fmt: skip
