"""Run a function in a forked process, which may be killed."""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Callable


def run_forked(run: Callable[[], object]) -> int:
    """Return the wait status of a forked process that calls `run`; an exception is status 70.

    The process never collects the garbage of this one: the destructor of a client with threads,
    such as librdkafka's, would wait for threads that a fork does not copy.
    """
    child = os.fork()
    if child == 0:
        code = 70
        try:
            gc.freeze()
            run()
            code = 0
        except Exception:  # noqa: BLE001 - the child must not go on as a second pytest
            traceback.print_exc(file=sys.__stderr__)
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]
