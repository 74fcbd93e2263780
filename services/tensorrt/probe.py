"""What TensorRT can do on this machine, asked once per process, in a process of its own."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib.util import find_spec

from bundle.errors import ErrorCode, MlctlError
from services.tensorrt.key import Device
from services.tensorrt.options import Flavour
from services.tensorrt.process import WorkerError, run_worker

_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Probe:
    """The `device` that TensorRT can use, or None and the `reason`."""

    device: Device | None
    reason: str = ""


@functools.cache
def probe_device(flavour: Flavour = Flavour.TENSORRT) -> Probe:
    """The first visible GPU as TensorRT sees it; never raises, never loads TensorRT here."""
    if find_spec(flavour.value) is None:
        return Probe(None, f"the Python package {flavour.value} is not installed")
    try:
        return Probe(Device(**run_worker("probe", {"flavour": flavour.value}, _TIMEOUT_S)))
    except WorkerError as error:
        return Probe(None, error.reason)


def require_device(provider: str, extra: str) -> Device:
    """The device; PROVIDER_UNAVAILABLE with the reason, and `extra` as what to install."""
    probe = probe_device()
    if probe.device is None:
        raise MlctlError(
            ErrorCode.PROVIDER_UNAVAILABLE,
            f"provider {provider!r} was asked for, but {probe.reason}",
            f"On a machine with an NVIDIA GPU: `pip install 'mlctl[{extra}]'`; "
            "`mlctl doctor` says what is missing.",
        )
    return probe.device
