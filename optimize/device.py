"""Where a variant is judged: on its target if this machine has it, else on the CPU, untimed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bundle.errors import ErrorCode, MlctlError
from optimize.recipes.base import Target
from services.runtime.session import open_session
from services.runtime.tensorrt.machine import find_gpu, provider_problem


@dataclass(frozen=True, slots=True)
class RunDevice:
    """`provider` runs the variants of `target`; `missing` says why it is not the target itself.

    `device` names the GPU that latencies are of; None on the CPU.
    """

    target: Target
    provider: str
    missing: str | None = None
    device: str | None = None

    @property
    def timed(self) -> bool:
        """Whether a latency measured here is one that the target would have."""
        return self.missing is None


def find_place(target: Target, graph: Path) -> RunDevice:
    """The place for `target` on this machine, found out without building an engine."""
    if target is Target.CPU:
        return RunDevice(target, target.value)
    missing = provider_problem() if target is Target.TENSORRT else None
    if missing is None:
        try:
            if target is Target.CUDA:
                open_session(graph, target.value)
            gpu = find_gpu()
        except MlctlError as error:
            if error.code is not ErrorCode.PROVIDER_UNAVAILABLE:
                raise
            missing = error.message
        else:
            name = f"{gpu.name} (compute {gpu.compute_capability})"
            return RunDevice(target, target.value, device=name)
    return RunDevice(target, Target.CPU.value, missing)
