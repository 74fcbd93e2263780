"""What an operator may ask of a rollout under way. Pure.

A wish is an event in the journal, written by a client and obeyed by the daemon at its next
look. So a client may die at once, and a daemon that comes back finds every wish again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class OperatorCommand(StrEnum):
    """A wish; the value is the kind of its event."""

    ROLLBACK = "rollback_requested"
    FULL = "full_requested"
    PAUSE = "pause_requested"
    RESUME = "resume_requested"

    @property
    def final(self) -> bool:
        """Whether it takes the traffic back for good."""
        return self is OperatorCommand.ROLLBACK


@dataclass(frozen=True, slots=True)
class Request:
    """One wish with its place in the journal and its reason in the operator's words."""

    seq: int
    wish: OperatorCommand
    reason: str


def next_request(requests: Iterable[Request], obeyed: int) -> Request | None:
    """The request to obey now, of those after `obeyed`: the first final one, or else the oldest."""
    waiting = sorted((each for each in requests if each.seq > obeyed), key=lambda each: each.seq)
    final = next((each for each in waiting if each.wish.final), None)
    return final or next(iter(waiting), None)
