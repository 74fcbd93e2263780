"""What works on a machine of a Ray cluster: an actor that scores units with the job's model.

It is given the files of the bundles, not a path: it writes them, verifies them by their digests,
and only then loads anything of them. It opens the model when it is first asked, so that an actor
that was started again goes on with whatever it is asked next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from bundle.errors import ErrorCode, MlctlError
from bundle.manifest import MANIFEST_NAME
from bundle.paths import check_relative
from services.batch.base import Chunk, SplittableSource, Unit, UnitResult
from services.batch.executors.scratch import Scratch, sweep
from services.runtime.bisect import TooManyError
from services.runtime.scorable import Scorable, bundles_of, verify_copies

if TYPE_CHECKING:
    from services.batch.job import Scoring
    from services.batch.scoring import UnitScorer

Files = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as values, for exceptions of ours do not travel; `reasons` are of TooManyError."""

    code: ErrorCode
    message: str
    hint: str
    reasons: Mapping[int, str] | None = None

    @classmethod
    def of(cls, error: MlctlError | TooManyError) -> Self:
        """The values of `error`."""
        if isinstance(error, TooManyError):
            return cls(ErrorCode.TOO_MANY_BAD_ROWS, str(error), "", error.reasons)
        return cls(error.code, error.message, error.hint)

    def error(self) -> Exception:
        """The error that it was."""
        if self.reasons is not None:
            return TooManyError(dict(self.reasons))
        return MlctlError(self.code, self.message, self.hint)


@dataclass(frozen=True, slots=True)
class Unread:
    """A unit that cannot be read on the actor's machine; why, in words."""

    unit: Unit
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """What an actor needs: `files` are those of the model, as `read_files` reads them.

    With a `source` the actor reads units itself, of those `columns`.
    """

    scoring: Scoring
    files: Files
    source: SplittableSource | None = None
    columns: tuple[str, ...] = ()


class ScoringActor:
    """Scores one unit after the other. Its answers are values: a UnitResult, or why there is none.

    It is told its errand each time, as what `fetch` gets it for: one that was started again
    has forgotten.
    """

    def __init__(self, fetch: Callable[[Any], WorkerSetup]) -> None:
        self._fetch = fetch
        self._scratch: Scratch | None = None
        self._given: tuple[WorkerSetup, UnitScorer] | None = None

    def open(self, errand: Sequence[Any]) -> Failure | None:
        """Load the model, if that is not done yet; why it cannot be loaded."""
        try:
            self._opened(errand)
        except MlctlError as error:
            return Failure.of(error)
        return None

    def score(self, errand: Sequence[Any], work: Chunk | Unit) -> UnitResult | Failure | Unread:
        """The answers of rows that were sent, or of a unit that is to be read here."""
        try:
            given, scorer = self._opened(errand)
            chunk = work if isinstance(work, Chunk) else _read(given, work)
            return scorer.score(chunk) if isinstance(chunk, Chunk) else chunk
        except (MlctlError, TooManyError) as error:
            return Failure.of(error)

    def close(self) -> None:
        """Remove what was written here."""
        self._given = None
        self._remove()

    def _remove(self) -> None:
        if self._scratch is not None:
            self._scratch.close()
            self._scratch = None

    def _opened(self, errand: Sequence[Any]) -> tuple[WorkerSetup, UnitScorer]:
        if self._given is None:
            # A sequence of one, for else Ray would fetch it for each call.
            (stored,) = errand
            given = self._fetch(stored)
            sweep()
            self._scratch = self._scratch or Scratch()
            folder = self._scratch.folder
            write_files(folder, given.files)
            model = verify_copies(given.scoring.model, lambda bundle: folder / bundle.name)
            self._given = given, replace(given.scoring, model=model).open()
            if all(bundle.manifest.transform is None for bundle in bundles_of(model)):
                # All is loaded; only a transform may read its files later.
                self._remove()
        return self._given


def _read(given: WorkerSetup, unit: Unit) -> Chunk | Unread:
    assert given.source is not None
    try:
        return given.source.read(unit, given.columns)
    except (MlctlError, OSError) as error:
        # The command may read it where it is, or else say what is wrong with it.
        return Unread(unit, str(error))


def read_files(model: Scorable) -> Files:
    """The bytes of each file of the model, manifests among them, as BUNDLE/FILE."""
    return {
        f"{bundle.name}/{name}": np.fromfile(bundle.root / name, np.uint8)
        for bundle in bundles_of(model)
        for name in (MANIFEST_NAME, *(entry.path for entry in bundle.manifest.files))
    }


def write_files(folder: Path, files: Files) -> None:
    """Write what `read_files` read below `folder`."""
    for name, content in files.items():
        path = folder / check_relative(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        content.tofile(path)
