"""The actor of `--executor ray`: reads, scores and commits units on a machine of the cluster.

It receives the files of the bundles, not a path: it writes them, verifies them by their digests,
and only then loads them. A restarted actor has lost its state, so every call carries the setup.
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
from services.batch.scratch import Scratch, sweep
from services.batch.units import Marker, Unit
from services.runtime.bisect import TooManyError
from services.runtime.scorable import Scorable, bundles_of, verify_copies

if TYPE_CHECKING:
    from services.batch.engine import UnitWorker
    from services.batch.job import Scoring

Files = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as values, because exceptions of Ray's workers lose theirs."""

    code: ErrorCode
    message: str
    hint: str
    reasons: Mapping[int, str] | None = None

    @classmethod
    def of(cls, error: MlctlError | TooManyError) -> Self:
        """Return the values of `error`."""
        if isinstance(error, TooManyError):
            return cls(ErrorCode.TOO_MANY_BAD_ROWS, str(error), "", error.reasons)
        return cls(error.code, error.message, error.hint)

    def error(self) -> Exception:
        """Return the error."""
        if self.reasons is not None:
            return TooManyError(dict(self.reasons))
        return MlctlError(self.code, self.message, self.hint)


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """Everything an actor needs; `files` are those of the model, as `read_files` reads them."""

    scoring: Scoring
    files: Files


class ScoringActor:
    """Commits one unit after the other; returns its marker, or a Failure."""

    def __init__(self, fetch: Callable[[Any], WorkerSetup]) -> None:
        self._fetch = fetch
        self._scratch: Scratch | None = None
        self._worker: UnitWorker | None = None

    def open(self, setup: Sequence[Any]) -> Failure | None:
        """Load the model if that has not been done; return the error if it fails."""
        try:
            self._opened(setup)
        except MlctlError as error:
            return Failure.of(error)
        return None

    def process(self, setup: Sequence[Any], unit: Unit) -> Marker | Failure:
        """Read, score and commit a unit."""
        try:
            return self._opened(setup).process(unit)
        except (MlctlError, TooManyError) as error:
            return Failure.of(error)

    def close(self) -> None:
        """Remove the files of the model."""
        self._worker = None
        self._remove()

    def _remove(self) -> None:
        if self._scratch is not None:
            self._scratch.close()
            self._scratch = None

    def _opened(self, setup: Sequence[Any]) -> UnitWorker:
        if self._worker is None:
            # A sequence of one, because Ray would fetch a bare reference for each call.
            (stored,) = setup
            found = self._fetch(stored)
            sweep()
            self._scratch = self._scratch or Scratch()
            folder = self._scratch.folder
            write_files(folder, found.files)
            model = verify_copies(found.scoring.model, lambda bundle: folder / bundle.name)
            self._worker = replace(found.scoring, model=model).open()
            if all(bundle.manifest.transform is None for bundle in bundles_of(model)):
                # All of it is loaded; only a transform may read its files later.
                self._remove()
        return self._worker


def read_files(model: Scorable) -> Files:
    """Return the bytes of each file of the model, with its manifests, as BUNDLE/FILE."""
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
