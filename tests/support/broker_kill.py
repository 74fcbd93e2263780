"""Members of a stream's group that kill themselves at a named step, and what they left behind.

A step is wrapped around the library that talks to the broker, so the code under test is what runs
everywhere. A member runs in a process of its own, made by a server that has loaded all it needs.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

from mlctl.services.stream.base import (
    Commit,
    ConnectionRequest,
    LostPartitionsError,
    Message,
    Outgoing,
)
from mlctl.services.stream.transports import transport_of
from tests.support.wait import PATIENCE_SECONDS

_BATCH = 6
_PRELOADED = [
    "mlctl.services.stream.transports.redis",
    "tests.support.broker_kill",
    "tests.support.broker_steps",
]


@dataclass
class Steps:
    """Counts how often each step is passed; dies at the `turn`-th time of `step`."""

    step: str = ""
    turn: int = 0

    def passed(self, step: str) -> None:
        if step != self.step:
            return
        self.turn -= 1
        if self.turn <= 0:
            os.kill(os.getpid(), signal.SIGKILL)


# Puts the steps into the broker's library, in the process where it is called.
Install = Callable[[Steps], None]


def is_poison(message: Message) -> bool:
    return int(message.content) % 10 == 3


def answers_to(messages: Sequence[Message]) -> Commit:
    """Answers, and a dead letter for each tenth message."""
    made = [Outgoing(m.value, m.key, (("mlctl-model", b"tiny"),)) for m in messages]
    dead = [each for each, m in zip(made, messages, strict=True) if is_poison(m)]
    alive = [each for each, m in zip(made, messages, strict=True) if not is_poison(m)]
    return Commit(messages, alive, dead)


def drain(request: ConnectionRequest, steps: Steps) -> None:
    """A member: until the group has committed all that is there."""
    with transport_of(request.source).open_connection(request) as link:
        while sum(link.lag().values()):
            found = link.poll(_BATCH, 0.05)
            if found:
                steps.passed("polled")
                try:
                    link.commit(answers_to(found))
                except LostPartitionsError:
                    continue


def _live(request: ConnectionRequest, install: Install, steps: Steps, ready: Connection) -> None:
    install(steps)
    ready.send("begun")
    drain(request, steps)


class Member:
    """A member in a process of its own, told where to die."""

    def __init__(self, request: ConnectionRequest, install: Install, steps: Steps) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOADED)
        here, there = context.Pipe(duplex=False)
        self._process = context.Process(target=_live, args=(request, install, steps, there))
        self._process.start()
        there.close()
        with here:
            assert here.poll(PATIENCE_SECONDS), "it did not begin"
            assert here.recv() == "begun"

    def died(self) -> bool:
        """Whether it was killed, which it was at its step; it ends by itself otherwise."""
        self._process.join(PATIENCE_SECONDS)
        code = self._process.exitcode
        if code is None:
            self._process.kill()
            self._process.join()
        assert code in {0, -9}, f"the member ended with {code}"
        return code == -9
