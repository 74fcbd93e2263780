"""The machine that variants are judged and timed on."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

from mlctl.optimize.cache import versions
from mlctl.services.model.int8_kernels import fast_kernels_are_exact

LIBRARIES = ("onnx", "onnxruntime", "onnxruntime-gpu", "torch")


@dataclass(frozen=True, slots=True)
class Conditions:
    """The machine that measured; `threads` per run of the model.

    `fast_int8` says that ONNX Runtime's fast INT8 kernels are exact on the processor, and used.
    """

    processor: str
    cores: int
    threads: int
    libraries: str
    fast_int8: bool

    @property
    def key(self) -> dict[str, str | bool]:
        """Return what measurements on this machine depend on, for their cache keys."""
        return {"processor": self.processor, "fast_int8": self.fast_int8}

    @property
    def sentence(self) -> str:
        """Say which machine the latencies are of."""
        kind = (
            ""
            if self.fast_int8
            else ", where INT8 with weights of more than 7 bits needs slower kernels to be exact"
        )
        return (
            f"Latencies are those of one thread of {self.processor}{kind}. Another kind of "
            "processor may choose another variant: optimize on the kind that serves."
        )


def find_conditions() -> Conditions:
    """Return the conditions that this machine measures under."""
    processor = _cpu_info().get("model name", platform.machine())
    cores = os.cpu_count() or 1
    return Conditions(processor, cores, 1, versions(*LIBRARIES), fast_kernels_are_exact())


def _cpu_info() -> dict[str, str]:
    """Return Linux's description of the first processor; empty elsewhere."""
    path = Path("/proc/cpuinfo")
    text = path.read_text().split("\n\n")[0] if path.is_file() else ""
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}
