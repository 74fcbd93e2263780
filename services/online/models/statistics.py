"""The model's configuration and counters in the form of Triton's extensions to the V2 protocol.

`perf_analyzer` and Triton's own dashboards read them. The counters are of the worker that answers;
/metrics has the sums over all workers.
"""

from __future__ import annotations

import math
from typing import Any

from mlctl.bundle.tensors import Datatype, TensorSpec
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.online.metrics.tally import Tally
from mlctl.services.online.metrics.triton import TRITON_VERSION
from mlctl.services.online.models.metadata import PLATFORM
from mlctl.services.online.models.served_model import ServedModel

_BACKEND = "onnxruntime"
_LANES = 2


def model_config(served: ServedModel) -> dict[str, Any]:
    """Return how the model is served, as a `ModelConfig`; UNAVAILABLE before it is ready.

    Shapes omit the batch dimension, which `max_batch_size` bounds: a request with more rows runs in
    several batches.
    """
    limits = served.limits
    if limits is None:
        raise _not_yet(served)
    batched = served.signature.batched
    config: dict[str, Any] = {
        "name": served.name,
        "platform": PLATFORM,
        "backend": _BACKEND,
        "max_batch_size": limits.max_rows if batched else 0,
        "input": [_tensor(spec, batched=batched) for spec in served.signature.inputs],
        "output": [_tensor(spec, batched=batched) for spec in served.signature.outputs],
    }
    if limits.joinable:
        config["dynamic_batching"] = {
            "max_queue_delay_microseconds": _microseconds(limits.max_wait),
            "priority_levels": _LANES,
            "default_priority_level": _LANES,
        }
    return config


def model_statistics(*models: ServedModel) -> dict[str, Any]:
    """Return what this worker counted since its start, with times in nanoseconds.

    Requests count in `inference_stats`, rows in `inference_count`, batches in the rest. The time of
    failed requests is not measured: most are rejected at once. UNAVAILABLE before the start.
    """
    return {"model_stats": [_statistics(served) for served in models]}


def _statistics(served: ServedModel) -> dict[str, Any]:
    tally = served.tally
    if tally is None:
        raise _not_yet(served)
    batches = sorted(tally.batches.items())
    return {
        "name": served.name,
        # perf_analyzer ends on a version that is no number; the digest is in the metadata.
        "version": TRITON_VERSION,
        "last_inference": round(tally.last * 1e3),
        "inference_count": sum(rows * count for rows, (count, _) in batches),
        "execution_count": sum(count for _, (count, _) in batches),
        "inference_stats": _requests(tally),
        "batch_stats": [
            {
                "batch_size": rows,
                "compute_input": _duration(count, 0.0),
                "compute_infer": _duration(count, seconds),
                "compute_output": _duration(count, 0.0),
            }
            for rows, (count, seconds) in batches
        ],
    }


def _requests(tally: Tally) -> dict[str, Any]:
    stages = tally.stages
    return {
        "success": _duration(tally.answered, sum(stages.values())),
        "fail": _duration(tally.failed, 0.0),
        **{name: _duration(tally.answered, seconds) for name, seconds in stages.items()},
    }


def _microseconds(seconds: float) -> int:
    """Return a delay in microseconds; 0 for one without a limit, which the server chooses."""
    return 0 if seconds == math.inf else round(seconds * 1e6)


def _duration(count: int, seconds: float) -> dict[str, int]:
    return {"count": count, "ns": round(seconds * 1e9)}


def _tensor(spec: TensorSpec, *, batched: bool) -> dict[str, Any]:
    name = "STRING" if spec.dtype is Datatype.BYTES else spec.dtype.value
    return {
        "name": spec.name,
        "data_type": f"TYPE_{name}",
        "dims": list(spec.shape[1:] if batched else spec.shape),
    }


def _not_yet(served: ServedModel) -> MlctlError:
    return MlctlError(ErrorCode.UNAVAILABLE, f"model {served.name!r} is {served.state}")
