"""Inside the worker: from an ONNX file to a serialized engine, with TensorRT's Python API.

The calls are those that TensorRT 10, 11 and TensorRT-RTX share. Networks are strongly
typed: precision is what the graph says, which is the only way that TensorRT 11 has.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bundle.files import write_atomic

Step = Callable[[Mapping[str, Any]], None]


class Refused(Exception):  # noqa: N818 - it is an answer, and no error of ours
    """Why TensorRT does not take this model."""


class Unavailable(Exception):  # noqa: N818 - likewise
    """Why TensorRT cannot be used on this machine at all."""


def build_plan(request: Mapping[str, Any], on_step: Step) -> dict[str, Any]:
    """Build `request`'s model, write the engine to its `engine` path, say size and version.

    `request` also has `flavour`, `profile` (inputs to least, usual and greatest shape),
    `flags` as in EngineFlags, and `timing_cache` (a path or None). Refused or Unavailable
    says why there is no engine.
    """
    trt = load_library(request["flavour"])
    log = make_logger(trt)
    try:
        builder = trt.Builder(log)
    except TypeError:  # the binding's answer to a null pointer
        raise Unavailable(log.last or "its builder does not start") from None
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, log)
    if not parser.parse_from_file(request["model"]):
        raise Refused(_parser_reason(parser) or log.last)
    config = _configure(trt, builder, request)
    monitor = make_monitor(trt, on_step)  # which must outlive the build
    config.progress_monitor = monitor
    timing = _load_timing_cache(config, request["timing_cache"])
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise Refused(log.last or "the build failed without a reason")
    write_atomic(Path(request["engine"]), bytes(memoryview(plan)))
    if timing is not None:
        write_atomic(Path(request["timing_cache"]), bytes(memoryview(timing.serialize())))
    return {"engine_bytes": plan.nbytes, "version": trt.__version__}


def load_library(flavour: str) -> Any:
    """The TensorRT module; Unavailable if it cannot be imported."""
    try:
        return importlib.import_module(flavour)
    except ImportError as error:
        raise Unavailable(f"{flavour} cannot be imported: {error}") from error


def make_logger(trt: Any) -> Any:
    """A logger for TensorRT that keeps the `last` error it was told of."""

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.last = ""

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.Severity.ERROR, trt.ILogger.Severity.INTERNAL_ERROR):
                self.last = message

    return Logger()


def make_monitor(trt: Any, on_step: Step) -> Any:
    """A progress monitor that tells `on_step` of every step of every phase."""

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self._totals: dict[str, int] = {}

        def phase_start(self, phase: str, _parent: str | None, steps: int) -> None:
            self._totals[phase] = steps

        def phase_finish(self, phase: str) -> None:
            self._totals.pop(phase, None)

        def step_complete(self, phase: str, step: int) -> bool:
            # Steps are counted from zero, and a phase's name may end in a number of its own.
            total = self._totals.get(phase, step + 1)
            on_step({"phase": phase, "done": min(step + 1, total), "total": total})
            return True

    return Monitor()


def _configure(trt: Any, builder: Any, request: Mapping[str, Any]) -> Any:
    config = builder.create_builder_config()
    flags = request["flags"]
    if flags["workspace_bytes"] is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, flags["workspace_bytes"])
    if flags["version_compatible"]:
        config.set_flag(trt.BuilderFlag.VERSION_COMPATIBLE)
    level = flags["hardware_compatibility"].upper()
    config.hardware_compatibility_level = getattr(trt.HardwareCompatibilityLevel, level)
    if request["profile"]:
        profile = builder.create_optimization_profile()
        for name, shapes in request["profile"].items():
            profile.set_shape(name, *map(tuple, shapes))
        if config.add_optimization_profile(profile) < 0:
            raise Refused(f"the optimization profile is not valid: {request['profile']}")
    return config


def _load_timing_cache(config: Any, path: str | None) -> Any:
    """The timing cache of an earlier build, or a new one; None if it is not wanted."""
    if path is None:
        return None
    known = Path(path).read_bytes() if Path(path).is_file() else b""
    cache = config.create_timing_cache(known) or config.create_timing_cache(b"")
    config.set_timing_cache(cache, ignore_mismatch=False)
    return cache


def _parser_reason(parser: Any) -> str:
    """The first error of the parser, with the node it is about."""
    if parser.num_errors == 0:
        return ""
    error = parser.get_error(0)
    where = f"node {error.node_name()!r} ({error.node_operator()}): " if error.node_name() else ""
    return f"{where}{error.desc()}"
