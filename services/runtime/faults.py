"""Whose fault a failed call is: the caller's, the model's on these inputs, or ours."""

from __future__ import annotations

import re

from bundle.errors import ErrorCode, MlctlError

# How runtimes say that there was not enough memory.
_MEMORY = ("out of memory", "failed to allocate", "bad_alloc", "allocation failed", "cudamalloc")
# ONNX Runtime's status code and message; of a kernel's failure without the node's name.
_STATUS = re.compile(
    r"\[ONNXRuntimeError\] : (?P<code>\d+) : \w+ : "
    r"(?:Non-zero status code returned while running \w+ node\. Name:'[^']*' Status Message: )?"
    r"(?P<message>[^\n]*)"
)
_INVALID_ARGUMENT = "2"
# Kernels report some values and sizes that do not fit under a code that stands for anything.
_MISFIT = re.compile(
    r"Attempting to broadcast an axis by a dimension other than 1\. \d+ by \d+"
    r"|(?:left|right) operand cannot broadcast .*"
    r"|Non concat axis dimensions must match.*"
    r"|\w+ dimension mismatch.*"
    r"|Out of range value in index tensor"
)
_SENTENCE_CHARS = 200


class RunError(Exception):
    """A runtime's own call failed, in its words. Only that call is to be wrapped in it."""


class InputRejectedError(RunError):
    """The runtime rejects the values or sizes of its inputs, in words that a caller may read."""


class ModelError(MlctlError):
    """The model, its runtime or its transform failed on these inputs: INTERNAL, without its text.

    A defect of mlctl may be INTERNAL too, but never this: no row is blamed for it.
    """

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INTERNAL, message)


def run_error(error: Exception) -> RunError:
    """Return what a failed call of ONNX Runtime means.

    An index out of bounds and lengths that do not fit each other are InputRejectedError. A shape
    that a graph computes itself, as for Reshape, is not: an export may have fixed it.
    """
    status = _STATUS.search(str(error))
    if status is None or lacks_memory(error):
        return RunError(str(error))
    message = status["message"]
    if misfit := _MISFIT.search(message):
        message = misfit[0]
    elif status["code"] != _INVALID_ARGUMENT:
        return RunError(str(error))
    return InputRejectedError(message.strip()[:_SENTENCE_CHARS])


def is_of_inputs(error: MlctlError) -> bool:
    """Whether other inputs may do; every other error is of the machine or ours."""
    return error.code is ErrorCode.INVALID_INPUT or isinstance(error, ModelError)


def lacks_memory(error: BaseException) -> bool:
    """Whether it, or what it comes from, says that there was not enough memory."""
    cause: BaseException | None = error
    while cause is not None:
        text = str(cause).lower()
        if isinstance(cause, MemoryError) or any(sign in text for sign in _MEMORY):
            return True
        cause = cause.__cause__
    return False
