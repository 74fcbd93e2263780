"""Events of a running optimization, so that a command can show its progress."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Stage(StrEnum):
    """The steps of an optimization, in their order."""

    RESOLVE = "resolve"
    EXPORT = "export"
    VARIANT = "variant"
    LATENCY = "latency"
    CHOOSE = "choose"
    PUBLISH = "publish"


class StepStatus(StrEnum):
    """The state of a step. CACHED is finished without work.

    FAILED, NOT_APPLICABLE and SKIPPED, for lack of time, do not stop the others.
    """

    STARTED = "started"
    WORKING = "working"
    FINISHED = "finished"
    CACHED = "cached"
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class StepEvent:
    """A change of one step; `recipe` only in the stages VARIANT and LATENCY.

    WORKING: `done` of `total` pieces of the work named in `detail` are finished.
    """

    stage: Stage
    status: StepStatus
    recipe: str | None = None
    detail: str = ""
    done: int = 0
    total: int = 0


class ProgressListener(Protocol):
    """A receiver of events."""

    def event(self, event: StepEvent) -> None: ...


class Silent:
    """A receiver that drops every event."""

    def event(self, event: StepEvent) -> None:
        """Drop it."""
