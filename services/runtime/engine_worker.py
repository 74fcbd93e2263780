"""The process that TensorRT runs in: `python -m services.runtime.engine_worker COMMAND`.

See `services.runtime.tensorrt.process` for what it reads and writes.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import IO, Any

from services.runtime.tensorrt.builder import Refused, Unavailable, build_plan

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Answer the one request on stdin."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with _only_answers_on_stdout() as answers:

        def report(event: str, message: Mapping[str, Any]) -> None:
            answers.write(json.dumps({"event": event, **message}) + "\n")
            answers.flush()

        try:
            report("result", _COMMANDS[sys.argv[1]](json.load(sys.stdin)))
        except Refused as refusal:
            report("refused", {"reason": str(refusal)})
        except Unavailable as reason:
            report("unavailable", {"reason": str(reason)})


def _only_answers_on_stdout() -> IO[str]:
    """The real stdout for our lines; what libraries print to theirs goes to stderr."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answers


def _warm(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Make a session with onnxruntime's provider, which leaves its engines in its cache."""
    from pathlib import Path

    from bundle.errors import ErrorCode, MlctlError
    from services.runtime.session import load_onnx

    providers = [(name, dict(options)) for name, options in request["providers"]]
    try:
        load_onnx(Path(request["model"]), providers, threads=1)
    except MlctlError as error:
        answer = Refused if error.code is ErrorCode.UNSUPPORTED_MODEL else Unavailable
        raise answer(error.message) from error
    return {}


_COMMANDS: Mapping[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]] = {
    "build": build_plan,
    "warm": _warm,
}

if __name__ == "__main__":
    main()
