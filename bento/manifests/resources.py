"""What a replica asks of its machine: from a measurement, else a guess that says so."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bundle.errors import ErrorCode, MlctlError

_MIB = 1 << 20
_STEP_MIB = 64
# What is asked for beyond what was seen: of processors, of memory, of the time to start.
_CPU_HEADROOM = 1.2
_MEMORY_HEADROOM = 1.5
_START_FACTOR = 4.0
_LEAST_START_SECONDS = 30
_GUESSED_START_SECONDS = 300
# A server without its model, and how often the model's file is in memory while it is loaded.
_GUESSED_MIB = 512
_COPIES = 3
SCRATCH_MIB = 64
_ENGINES_MIB = 8192


@dataclass(frozen=True, slots=True)
class Resources:
    """Of one replica: thousandths of a CPU, MiB of memory, whole GPUs, seconds to become ready.

    `reason` says where the numbers are from.
    """

    cpu_millis: int
    memory_mib: int
    gpus: int
    start_seconds: int
    measured: bool
    reason: str

    @property
    def cpu(self) -> str:
        """As Kubernetes writes it."""
        return f"{self.cpu_millis}m"

    @property
    def scratch_mib(self) -> int:
        """Of the one folder that can be written; on a GPU, built engines are kept there."""
        return _ENGINES_MIB if self.gpus else SCRATCH_MIB

    @property
    def memory(self) -> str:
        """As Kubernetes writes it."""
        return f"{self.memory_mib}Mi"


def guess(model_bytes: int, workers: int, *, gpu: bool) -> Resources:
    """For a model whose files have so many bytes, in so many worker processes."""
    mib = workers * (_GUESSED_MIB + _COPIES * model_bytes / _MIB) + SCRATCH_MIB
    return Resources(
        cpu_millis=1000 * workers,
        memory_mib=_stepped(mib),
        gpus=int(gpu),
        start_seconds=_GUESSED_START_SECONDS,
        measured=False,
        reason="guesses: give --bench the output of `mlctl bench TAG --json`",
    )


def read_bench(path: Path, digests: Collection[str], *, gpu: bool) -> Resources:
    """From what `mlctl bench TAG --json` wrote: the run with the most answers, none of them failed.

    INVALID_INPUT if that is of a model with none of these `digests`, or not of a Bento, whose
    processes alone are measured.
    """
    try:
        document = json.loads(path.read_text())
        version, runs = str(document["version"]), list(document["runs"])
        good = [run for run in runs if not run["errors"] and run.get("per_cpu_second")]
        best = max(good, key=lambda run: float(run["per_second"]), default=None)
        if version not in digests:
            ours = ", ".join(sorted(digest[:12] for digest in digests))
            raise _unfit(path, f"it is of {version[:12]}, and this Bento has {ours}")
        if best is None or not best.get("memory_bytes"):
            raise _unfit(path, "no run without failures tells CPU and memory")
        return _from_run(best, float(document.get("ready_seconds") or 0.0), gpu=gpu)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unfit(path, f"it cannot be read ({type(error).__name__})") from error


def _from_run(run: Mapping[str, Any], ready_seconds: float, *, gpu: bool) -> Resources:
    cores = float(run["per_second"]) / float(run["per_cpu_second"])
    mib = float(run["memory_bytes"]) / _MIB
    clients, rate = run.get("clients"), run.get("rate")
    load = f"{clients} clients" if clients is not None else f"{rate:g} requests a second"
    start = max(_LEAST_START_SECONDS, math.ceil(_START_FACTOR * ready_seconds))
    return Resources(
        cpu_millis=max(100, math.ceil(cores * _CPU_HEADROOM * 10) * 100),
        memory_mib=_stepped(mib * _MEMORY_HEADROOM + SCRATCH_MIB),
        gpus=int(gpu),
        start_seconds=start if ready_seconds else _GUESSED_START_SECONDS,
        measured=True,
        reason=(
            f"measured: {cores:.2f} CPUs and {mib:.0f} MiB at {float(run['per_second']):.0f} "
            f"answers a second to {load}, ready after {ready_seconds:.1f} s"
        ),
    )


def _stepped(mib: float) -> int:
    return math.ceil(mib / _STEP_MIB) * _STEP_MIB


def _unfit(path: Path, why: str) -> MlctlError:
    return MlctlError(
        ErrorCode.INVALID_INPUT,
        f"{path.name} does not say what a replica needs: {why}",
        "Measure the Bento itself: mlctl bench NAME:VERSION --json > bench.json",
    )
