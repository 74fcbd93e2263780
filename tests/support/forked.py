"""Run a function in a forked process, which may be killed, or in a small new one that forks."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import traceback
from collections.abc import Callable

from tests.test_architecture import ROOT


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


def run_apart(run: Callable[..., None], *arguments: object) -> None:
    """Call `run` with the arguments as text in a new process; fail with its exception.

    For hundreds of forks: each copies the page tables of its process, and a test process that has
    loaded most libraries takes three times as long for it.
    """
    call = f"import sys; from {run.__module__} import {run.__name__} as run; run(*sys.argv[1:])"
    command = [sys.executable, "-c", call, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stderr
