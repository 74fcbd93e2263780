"""Check whether TensorRT's importer accepts a graph, on a machine without a GPU.

TensorRT-RTX has the importer and the builder of TensorRT 11 and needs no GPU to build,
so a graph that it rejects is found before a GPU is rented. The check says nothing about speed,
and the engine is discarded.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from mlctl.bundle.manifest import Batching
from mlctl.core.clock import Clock, SystemClock
from mlctl.core.packages import install_hint
from mlctl.services.model.onnx_graph import read_graph
from mlctl.services.model.tensorrt.process import LIBRARY, Cause, WorkerError, build_engine
from mlctl.services.model.tensorrt.profile import DEFAULT_LENGTHS, SizeRange, make_profile

_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class TensorRtCheck:
    """Whether the importer accepts a graph; `ok` is None if the check could not run.

    `reason` is the importer's error, or why the check did not run; empty if ok. A graph
    that crashes the importer's process is rejected.
    """

    ok: bool | None
    reason: str = ""
    seconds: float | None = None
    engine_bytes: int | None = None
    importer_version: str | None = None


def check_importable(
    model: Path,
    batching: Batching | None = None,
    lengths: SizeRange = DEFAULT_LENGTHS,
    timeout_s: float = _TIMEOUT_S,
    clock: Clock | None = None,
) -> TensorRtCheck:
    """Parse the ONNX file `model` and build an engine from it, in a separate process.

    The engine is for `batching`'s batch sizes and for `lengths` of other dynamic
    dimensions. PATH_UNSAFE, FILE_MISSING or UNSUPPORTED_MODEL if `model` is not an ONNX graph.
    """
    clock = clock or SystemClock()
    if find_spec(LIBRARY) is None:
        return TensorRtCheck(None, f"not checked. {install_hint('trt-check')}")
    profile = make_profile(read_graph(model).inputs, batching, lengths)
    start = clock.monotonic()
    try:
        built = build_engine(model, profile, timeout_s)
    except WorkerError as error:
        if error.cause in (Cause.TIMED_OUT, Cause.UNAVAILABLE):
            return TensorRtCheck(None, f"not checked: {error.reason}")
        return TensorRtCheck(False, error.reason, round(clock.monotonic() - start, 3))
    return TensorRtCheck(
        True,
        seconds=round(clock.monotonic() - start, 3),
        engine_bytes=built.engine_bytes,
        importer_version=f"tensorrt-rtx {built.version}",
    )
