"""What the pipeline tells while it works, so that a command can draw it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Stage(StrEnum):
    """The steps of an optimization, in their order."""

    RESOLVE = "resolve"
    EXPORT = "export"
    VARIANT = "variant"
    CHOOSE = "choose"
    PUBLISH = "publish"


class Status(StrEnum):
    """How a step stands. CACHED is finished without work, FAILED lets the others go on."""

    STARTED = "started"
    FINISHED = "finished"
    CACHED = "cached"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Event:
    """A change of one step; `recipe` only in stage VARIANT."""

    stage: Stage
    status: Status
    recipe: str | None = None
    detail: str = ""


class Progress(Protocol):
    """Someone who watches."""

    def event(self, event: Event) -> None: ...


class Silent:
    """Nobody watches."""

    def event(self, event: Event) -> None:
        """Drop it."""
