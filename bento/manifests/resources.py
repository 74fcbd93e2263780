"""Resources of one replica: from a measurement, or else an estimate that says so."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlctl.core.errors import ErrorCode, MlctlError

_MIB = 1 << 20
_STEP_MIB = 64
# Requested resources over measured ones: CPU, memory, time to start.
_CPU_HEADROOM = 1.2
_MEMORY_HEADROOM = 1.5
_START_FACTOR = 4.0
_MIN_START_SECONDS = 30
_ESTIMATED_START_SECONDS = 300
# A server without its model, and the copies of the model's file in memory while it loads.
_ESTIMATED_MIB = 512
_COPIES = 3
# The rows of a unit in memory, for each thread that scores.
_ROWS_MIB = 512
SCRATCH_MIB = 64
_ENGINES_MIB = 8192


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources of one replica: thousandths of a CPU, MiB of memory, whole GPUs.

    `start_seconds` is the longest time to become ready. `reason` says where the numbers come from.
    """

    cpu_millis: int
    memory_mib: int
    gpus: int
    start_seconds: int
    measured: bool
    reason: str

    @property
    def cpu(self) -> str:
        """The CPU as Kubernetes writes it."""
        return f"{self.cpu_millis}m"

    @property
    def cpus(self) -> str:
        """The CPU as Compose writes it."""
        return f"{self.cpu_millis / 1000:g}"

    @property
    def scratch_mib(self) -> int:
        """The size in MiB of the only writable folder; on a GPU it also holds built engines."""
        return _ENGINES_MIB if self.gpus else SCRATCH_MIB

    @property
    def memory(self) -> str:
        """The memory as Kubernetes writes it."""
        return f"{self.memory_mib}Mi"


def estimate(model_bytes: int, workers: int, *, gpu: bool) -> Resources:
    """Estimate for model files of `model_bytes` bytes, loaded by each of `workers` processes."""
    mib = workers * (_ESTIMATED_MIB + _COPIES * model_bytes / _MIB) + SCRATCH_MIB
    return Resources(
        cpu_millis=1000 * workers,
        memory_mib=_stepped(mib),
        gpus=int(gpu),
        start_seconds=_ESTIMATED_START_SECONDS,
        measured=False,
        reason="estimates; --bench takes measured ones from `mlctl bench TAG --json`",
    )


def runner_resources(
    model_bytes: int, cpus: int, memory_mib: int | None, *, gpu: bool
) -> Resources:
    """Return the requested resources of a runner; without `memory_mib`, an estimate of it."""
    mib = _ESTIMATED_MIB + _COPIES * model_bytes / _MIB + cpus * _ROWS_MIB
    return Resources(
        cpu_millis=1000 * cpus,
        memory_mib=memory_mib or _stepped(mib),
        gpus=int(gpu),
        start_seconds=0,
        measured=memory_mib is not None,
        reason="--cpu and --memory" if memory_mib else "memory is an estimate; --memory sets it",
    )


def read_bench(path: Path, digests: Collection[str], *, gpu: bool) -> Resources:
    """Read the output of `mlctl bench TAG --json`: its fastest run without a failed request.

    INVALID_INPUT if it measured a model with none of these `digests`, or a URL: only the
    processes of a Bento that the benchmark started have their CPU and memory measured.
    """
    try:
        document = json.loads(path.read_text())
        version, runs = str(document["version"]), list(document["runs"])
        good = [run for run in runs if not run["errors"] and run.get("per_cpu_second")]
        best = max(good, key=lambda run: float(run["per_second"]), default=None)
        if version not in digests:
            ours = ", ".join(sorted(digest[:12] for digest in digests))
            raise _unfit(path, f"it measured {version[:12]}, this Bento holds {ours}")
        if best is None or not best.get("memory_bytes"):
            raise _unfit(path, "it has no run without failures that measured CPU and memory")
        return _from_run(best, float(document.get("ready_seconds") or 0.0), gpu=gpu)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unfit(path, "it is not the JSON of a benchmark") from error


def _from_run(run: Mapping[str, Any], ready_seconds: float, *, gpu: bool) -> Resources:
    cores = float(run["per_second"]) / float(run["per_cpu_second"])
    mib = float(run["memory_bytes"]) / _MIB
    clients, rate = run.get("clients"), run.get("rate")
    load = f"{clients} clients" if clients is not None else f"an open loop at {rate:g}/s"
    start = max(_MIN_START_SECONDS, math.ceil(_START_FACTOR * ready_seconds))
    return Resources(
        cpu_millis=max(100, math.ceil(cores * _CPU_HEADROOM * 10) * 100),
        memory_mib=_stepped(mib * _MEMORY_HEADROOM + SCRATCH_MIB),
        gpus=int(gpu),
        start_seconds=start if ready_seconds else _ESTIMATED_START_SECONDS,
        measured=True,
        reason=(
            f"measured: {cores:.2f} CPUs and {mib:.0f} MiB at {float(run['per_second']):.0f} "
            f"requests per second from {load}, ready after {ready_seconds:.1f} s"
        ),
    )


def _stepped(mib: float) -> int:
    return math.ceil(mib / _STEP_MIB) * _STEP_MIB


def _unfit(path: Path, reason: str) -> MlctlError:
    return MlctlError(
        ErrorCode.INVALID_INPUT,
        f"{path.name} cannot size a replica: {reason}",
        "Measure the Bento: mlctl bench NAME:VERSION --json > bench.json",
    )
