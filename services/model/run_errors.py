"""Classify a failed run: the inputs, the model or mlctl is at fault."""

from __future__ import annotations

import re

from mlctl.core.errors import ErrorCode, MlctlError

# Texts of runtimes that are out of memory.
_MEMORY = ("out of memory", "failed to allocate", "bad_alloc", "allocation failed", "cudamalloc")
# ONNX Runtime's status code and message; of a kernel's failure without the node's name.
_STATUS = re.compile(
    r"\[ONNXRuntimeError\] : (?P<code>\d+) : \w+ : "
    r"(?:Non-zero status code returned while running (?P<node>\w+) node\. Name:'[^']*' "
    r"Status Message: )?"
    r"(?P<message>[^\n]*)"
)
_INVALID_ARGUMENT = "2"
# Kernels report some mismatched values and sizes under a generic status code.
_MISFIT = re.compile(
    r"Attempting to broadcast an axis by a dimension other than 1\. \d+ by \d+"
    r"|(?:left|right) operand cannot broadcast .*"
    r"|Non concat axis dimensions must match.*"
    r"|\w+ dimension mismatch.*"
    r"|Out of range value in index tensor"
)
# What a Cast of text to numbers reports: the function of C++ that could not parse it.
_NOT_A_NUMBER = re.compile(r"sto(?:i|l|ll|ul|ull|f|d|ld)")
_SENTENCE_CHARS = 200


class RunError(Exception):
    """A call of the runtime failed; the text is the runtime's. Only for calls of the runtime."""


class InputRejectedError(RunError):
    """The runtime rejects the values or sizes of its inputs; a caller may read the text."""


class ModelRunError(MlctlError):
    """The model, its runtime or its transform failed on these inputs: INTERNAL, without its text.

    A defect of mlctl is INTERNAL as well, but never this class, so it rejects no row.
    """

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INTERNAL, message)


def run_error(error: Exception) -> RunError:
    """Return the error for a failed call of ONNX Runtime.

    An index out of bounds, mismatched lengths and text that is not a number are InputRejectedError.
    A shape that a graph computes itself, as for Reshape, is not: the export may have fixed it.
    """
    status = _STATUS.search(str(error))
    if status is None or is_out_of_memory(error):
        return RunError(str(error))
    message = status["message"]
    if misfit := _MISFIT.search(message):
        message = misfit[0]
    elif status["node"] == "Cast" and _NOT_A_NUMBER.fullmatch(message.strip()):
        message = "a text is not a number, or is out of range"
    elif status["code"] != _INVALID_ARGUMENT:
        return RunError(str(error))
    return InputRejectedError(message.strip()[:_SENTENCE_CHARS])


def is_caused_by_inputs(error: MlctlError) -> bool:
    """Return whether the inputs caused the error, rather than the machine or mlctl."""
    return error.code is ErrorCode.INVALID_INPUT or isinstance(error, ModelRunError)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the error or one of its causes says that memory ran out."""
    cause: BaseException | None = error
    while cause is not None:
        text = str(cause).lower()
        if isinstance(cause, MemoryError) or any(sign in text for sign in _MEMORY):
            return True
        cause = cause.__cause__
    return False
