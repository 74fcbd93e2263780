"""Where a variant is judged: on its target if this machine has it, else on the CPU, untimed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bundle.errors import ErrorCode, MlctlError
from optimize.recipes.base import Target
from services.runtime.session import open_session
from services.tensorrt.cuda import Driver
from services.tensorrt.installed import provider_problem
from services.tensorrt.probe import probe_device


@dataclass(frozen=True, slots=True)
class Place:
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


def find_place(target: Target, graph: Path) -> Place:
    """The place for `target` on this machine, found out without building an engine."""
    missing: str | None = None
    if target is Target.TENSORRT:
        missing = provider_problem() or probe_device().reason or None
    elif target is Target.CUDA:
        missing = _refusal(graph, target)
    if target is Target.CPU or missing is not None:
        return Place(target, Target.CPU.value, missing)
    gpu = Driver().describe()
    return Place(target, target.value, device=f"{gpu.name} (compute {gpu.compute_capability})")


def _refusal(graph: Path, target: Target) -> str | None:
    try:
        open_session(graph, target.value)
    except MlctlError as error:
        if error.code is not ErrorCode.PROVIDER_UNAVAILABLE:
            raise
        return error.message
    return None
