"""Every change to the insides of uvicorn, BentoML, circus and Tornado that the server needs.

Each has a test in `tests/services/online/server/test_patches.py` that fails if an update of the
library makes it void.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Any

import click

# Set in BentoML's images: its supervisor then replaces no worker, and ends with the last one.
_CONTAINERIZED = "BENTOML_CONTAINERIZED"


def use_protocol(protocol: type, loop_factory: str) -> None:
    """Set uvicorn's HTTP protocol and event loop for the server that this process starts next.

    BentoML makes uvicorn's configuration after the application and names neither, so uvicorn takes
    the entries "auto" of its tables. `loop_factory` is "module:function".
    """
    from uvicorn.config import HTTP_PROTOCOLS, LOOP_FACTORIES  # only a worker needs them

    protocols: dict[str, Any] = HTTP_PROTOCOLS
    protocols["auto"] = protocol
    LOOP_FACTORIES["auto"] = loop_factory


def make_bento_app(service: Any, *, is_main: bool) -> Any:
    """Return BentoML's own ASGI application without its TimeoutMiddleware.

    That never cancels its timers, so each request would stay in memory for the longest time.
    """
    from _bentoml_impl.server.app import ServiceAppFactory

    service.inject_config()
    factory = ServiceAppFactory(service, is_main=is_main)
    factory.timeout = None
    return factory()


def inherited_listener() -> int:
    """Return the descriptor that BentoML's worker command was given to listen on."""
    return int(click.get_current_context().params["fd"])


def hide_tracebacks() -> None:
    """Keep uvicorn from logging the traceback of a start-up error that is explained already."""
    log = logging.getLogger("uvicorn.error")
    log.addFilter(lambda record: not str(record.msg).startswith("Traceback"))


def use_monotonic_clock() -> None:
    """Let the supervisor (circus) check its workers on time after a step of the wall clock.

    It checks by the time of Tornado's loop, which is the wall clock. Loop times are only compared
    with each other, so any clock will do. Call it before the supervisor makes its loop.
    """
    from tornado.ioloop import IOLoop  # only the supervisor has loaded it

    loop_class: Any = IOLoop
    loop_class.time = staticmethod(time.monotonic)


def replace_workers_in_containers() -> None:
    """Let BentoML's supervisor replace workers that end also in its own images."""
    os.environ.pop(_CONTAINERIZED, None)


def watch_workers(ended: Callable[[int, int], None]) -> None:
    """Let the supervisor (circus) call `ended` with the id and exit code of a worker that ends.

    The exit code is negative for a signal.
    """
    from circus.watcher import Watcher  # only the supervisor has loaded it

    watcher: Any = Watcher
    notify = watcher.notify_event

    def notify_event(self: Any, topic: str, message: dict[str, Any]) -> None:
        if topic == "reap":
            ended(message["process_pid"], message["exit_code"])
        notify(self, topic, message)

    watcher.notify_event = notify_event
