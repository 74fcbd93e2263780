"""The device that variants run on: the target if this machine has it, else the CPU, untimed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.optimize.recipes.base import Target
from mlctl.services.model.session import open_session
from mlctl.services.model.tensorrt.machine import find_gpu, provider_problem


@dataclass(frozen=True, slots=True)
class RunDevice:
    """The ONNX Runtime `provider` that runs the variants of `target`.

    `missing` says why it is not the target itself, None if it is. `gpu` names the GPU that
    latencies are measured on, None on the CPU.
    """

    target: Target
    provider: str
    missing: str | None = None
    gpu: str | None = None

    @property
    def timed(self) -> bool:
        """Whether latencies measured on this device are the target's."""
        return self.missing is None


def find_device(target: Target, graph: Path) -> RunDevice:
    """Return the device for `target` on this machine, without building an engine for `graph`."""
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
            return RunDevice(target, target.value, gpu=name)
    return RunDevice(target, Target.CPU.value, missing)
