"""Commands that an operator sends to the active rollout. Pure.

A command is an event in the journal, written by a client and applied by the daemon at its next
observation. So a client may die at once, and a daemon that comes back finds every command again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class OperatorCommand(StrEnum):
    """A command of an operator; the value is the kind of its journal event."""

    ROLLBACK = "rollback_requested"
    FULL = "full_requested"
    PAUSE = "pause_requested"
    RESUME = "resume_requested"

    @property
    def final(self) -> bool:
        """Whether it takes the traffic back for good."""
        return self is OperatorCommand.ROLLBACK


@dataclass(frozen=True, slots=True)
class OperatorRequest:
    """One command with its place in the journal and its reason in the operator's words."""

    seq: int
    command: OperatorCommand
    reason: str


def next_request(requests: Iterable[OperatorRequest], applied: int) -> OperatorRequest | None:
    """Return the next request after `applied`: the first final one, else the oldest."""
    waiting = sorted((each for each in requests if each.seq > applied), key=lambda each: each.seq)
    final = next((each for each in waiting if each.command.final), None)
    return final or next(iter(waiting), None)
