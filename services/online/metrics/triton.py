"""The counters that Triton's dashboards, alerts and autoscalers read, under Triton's names.

Triton's names do not end in `_total`, as prometheus-client's counters always do. So they are
gauges in its registry that only grow, and `as_counters` corrects their type in the exposition.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from mlctl.services.online.metrics.exposition import CounterSink
from mlctl.services.online.metrics.tally import Tally

# What the statistics say, too: Triton numbers versions, and a server has one of its model.
TRITON_VERSION = "1"
_TEXTS: Mapping[str, str] = {
    "nv_inference_request_success": "Requests that were answered.",
    "nv_inference_request_failure": "Requests that failed or were rejected.",
    "nv_inference_count": "Rows that were run.",
    "nv_inference_exec_count": "Batches that were run.",
    "nv_inference_request_duration_us": "Microseconds of answered requests, summed.",
    "nv_inference_queue_duration_us": "Microseconds that they waited.",
    "nv_inference_compute_input_duration_us": "Microseconds that they were parsed.",
    "nv_inference_compute_infer_duration_us": "Microseconds that their batches ran.",
    "nv_inference_compute_output_duration_us": "Microseconds that answers were written.",
}
TRITON_NAMES = frozenset(_TEXTS)
_TYPES = re.compile(r"^(# TYPE nv_\w+) gauge$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class TritonNames:
    """One model's sums in one worker."""

    sinks: Mapping[str, CounterSink]

    @classmethod
    def of(cls, model: str, registry: CollectorRegistry) -> TritonNames:
        """Return the counters of `model`, all zero."""
        labels = {"model": model, "version": TRITON_VERSION}
        return cls(
            {
                name: CounterSink(name, text, labels, (), registry, gauge=True)
                for name, text in _TEXTS.items()
            }
        )

    def report(self, tally: Tally) -> None:
        """Bring them up to date."""
        for name, total in _totals(tally).items():
            self.sinks[f"nv_inference_{name}"].report({(): total})


def as_counters(exposition: str) -> str:
    """Return the text of /metrics in which Triton's names are counters."""
    return _TYPES.sub(r"\1 counter", exposition)


def _totals(tally: Tally) -> dict[str, int]:
    seconds = {"request": sum(tally.stages.values()), **tally.stages}
    return {
        "request_success": tally.answered,
        "request_failure": tally.failed,
        "count": sum(rows * count for rows, (count, _) in tally.batches.items()),
        "exec_count": sum(count for count, _ in tally.batches.values()),
        **{f"{stage}_duration_us": round(value * 1e6) for stage, value in seconds.items()},
    }
