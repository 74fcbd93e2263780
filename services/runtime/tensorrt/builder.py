"""Inside the worker: from an ONNX file to a serialized engine, with TensorRT's Python API.

Networks are strongly typed: precision is what the graph says.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any


class Refused(Exception):  # noqa: N818 - it is an answer, and no error of ours
    """Why TensorRT does not take this model."""


class Unavailable(Exception):  # noqa: N818 - likewise
    """Why TensorRT cannot be used on this machine at all."""


def build_plan(request: Mapping[str, Any]) -> dict[str, Any]:
    """Build an engine of `request`'s `model`, and return its size and the library's version.

    `request` also has `library`, the Python module, and `profile` (inputs to least, usual and
    greatest shape). Refused or Unavailable says why there is no engine.
    """
    trt = _load_library(request["library"])
    log = _make_logger(trt)
    try:
        builder = trt.Builder(log)
    except TypeError:  # the binding's answer to a null pointer
        raise Unavailable(log.last or "its builder does not start") from None
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, log)
    if not parser.parse_from_file(request["model"]):
        raise Refused(_parser_reason(parser) or log.last)
    config = builder.create_builder_config()
    if request["profile"]:
        profile = builder.create_optimization_profile()
        for name, shapes in request["profile"].items():
            profile.set_shape(name, *map(tuple, shapes))
        if config.add_optimization_profile(profile) < 0:
            raise Refused(f"the optimization profile is not valid: {request['profile']}")
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise Refused(log.last or "the build failed without a reason")
    return {"engine_bytes": plan.nbytes, "version": trt.__version__}


def _load_library(name: str) -> Any:
    """The TensorRT module; Unavailable if it cannot be imported."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Unavailable(f"{name} cannot be imported: {error}") from error


def _make_logger(trt: Any) -> Any:
    """A logger for TensorRT that keeps the `last` error it was given."""

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.last = ""

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.Severity.ERROR, trt.ILogger.Severity.INTERNAL_ERROR):
                self.last = message

    return Logger()


def _parser_reason(parser: Any) -> str:
    """The first error of the parser, with the node it is about."""
    if parser.num_errors == 0:
        return ""
    error = parser.get_error(0)
    where = f"node {error.node_name()!r} ({error.node_operator()}): " if error.node_name() else ""
    return f"{where}{error.desc()}"
