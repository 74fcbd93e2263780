"""The process that TensorRT runs in: `python -m mlctl.services.model.engine_worker COMMAND`.

`mlctl.services.model.tensorrt.process` starts it and describes what it reads and writes.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import IO, Any

from mlctl.core.child_process import end_with_parent


class ModelRejected(Exception):  # noqa: N818 - a result, not a defect
    """Why TensorRT rejects this model."""


class Unavailable(Exception):  # noqa: N818 - likewise
    """Why TensorRT cannot be used on this machine."""


def main() -> None:
    """Answer the one request on stdin."""
    end_with_parent(int(sys.argv[2]))
    with _open_answers() as answers:

        def report(event: str, message: Mapping[str, Any]) -> None:
            answers.write(json.dumps({"event": event, **message}) + "\n")
            answers.flush()

        try:
            report("result", _COMMANDS[sys.argv[1]](json.load(sys.stdin)))
        except ModelRejected as reason:
            report("rejected", {"reason": str(reason)})
        except Unavailable as reason:
            report("unavailable", {"reason": str(reason)})


def _open_answers() -> IO[str]:
    """Return the real stdout for answers; what libraries print to stdout goes to stderr."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answers


def _warm(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Open the model with ONNX Runtime's provider, which writes its engines to its cache."""
    from pathlib import Path

    from mlctl.core.errors import ErrorCode, MlctlError
    from mlctl.services.model.session import load_onnx

    providers = [(name, dict(options)) for name, options in request["providers"]]
    try:
        load_onnx(Path(request["model"]), providers, threads=1)
    except MlctlError as error:
        answer = ModelRejected if error.code is ErrorCode.UNSUPPORTED_MODEL else Unavailable
        raise answer(error.message) from error
    return {}


def _build(request: Mapping[str, Any]) -> dict[str, Any]:
    """Build an engine of `request["model"]`; return its size and the library's version.

    `request` also has `library`, the name of the Python module, and `profile`, the minimum,
    optimum and maximum shape of each input. Networks are strongly typed: precision is the graph's.
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
        raise ModelRejected(_parser_reason(parser) or log.last)
    config = builder.create_builder_config()
    if request["profile"]:
        profile = builder.create_optimization_profile()
        for name, shapes in request["profile"].items():
            profile.set_shape(name, *map(tuple, shapes))
        if config.add_optimization_profile(profile) < 0:
            raise ModelRejected(f"the optimization profile is not valid: {request['profile']}")
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise ModelRejected(log.last or "the build failed without a reason")
    return {"engine_bytes": plan.nbytes, "version": trt.__version__}


def _load_library(name: str) -> Any:
    """Import the TensorRT module; Unavailable if that fails."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Unavailable(f"{name} cannot be imported: {error}") from error


def _make_logger(trt: Any) -> Any:
    """Return a logger for TensorRT that keeps its `last` error."""

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.last = ""

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.Severity.ERROR, trt.ILogger.Severity.INTERNAL_ERROR):
                self.last = message

    return Logger()


def _parser_reason(parser: Any) -> str:
    """Return the parser's first error with the node at fault; empty without errors."""
    if parser.num_errors == 0:
        return ""
    error = parser.get_error(0)
    where = f"node {error.node_name()!r} ({error.node_operator()}): " if error.node_name() else ""
    return f"{where}{error.desc()}"


_COMMANDS: Mapping[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]] = {
    "build": _build,
    "warm": _warm,
}

if __name__ == "__main__":
    main()
    os._exit(0)  # the libraries may hang while a process ends
