"""Whose fault a failed call is: the model's on these inputs, so that others may do, or ours."""

from __future__ import annotations

from bundle.errors import ErrorCode, MlctlError

# How runtimes say that there was not enough memory.
_MEMORY = ("out of memory", "failed to allocate", "bad_alloc", "allocation failed", "cudamalloc")


class RunError(Exception):
    """A runtime's own call failed, in its words. Only that call is to be wrapped in it."""


class ModelError(MlctlError):
    """The model, its runtime or its transform failed on these inputs: INTERNAL, without its text.

    A defect of mlctl may be INTERNAL too, but never this: no row is blamed for it.
    """

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INTERNAL, message)


def lacks_memory(error: BaseException) -> bool:
    """Whether it, or what it comes from, says that there was not enough memory."""
    cause: BaseException | None = error
    while cause is not None:
        text = str(cause).lower()
        if isinstance(cause, MemoryError) or any(sign in text for sign in _MEMORY):
            return True
        cause = cause.__cause__
    return False
