"""Where a deployment's servers record their answers, and the variables that say so."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mlctl.rollout.domain.spec import DeploymentSettings, Slot

SAMPLE_DIR = "MLCTL_SAMPLE_DIR"
SAMPLE_CONTROL = "MLCTL_SAMPLE_CONTROL"
SAMPLE_REDACT = "MLCTL_SAMPLE_REDACT"


@dataclass(frozen=True, slots=True)
class SampleFolder:
    """The part of a deployment's `directory` that holds samples."""

    directory: Path

    @property
    def control(self) -> Path:
        """The document that says what both slots record."""
        return self.directory / "samples" / "control.json"

    def segments(self, slot: Slot) -> Path:
        """Where all replicas of a slot write their segments."""
        return self.directory / "samples" / slot

    @property
    def predictions(self) -> Path:
        """What both slots predicted, for labels that come later; it stays when they are stopped."""
        return self.directory / "predictions.db"

    def disagreements(self, rollout: int) -> Path:
        """The rows that a rollout's two revisions answered differently; it stays."""
        return self.directory / "disagreements" / f"{rollout}.parquet"

    def clear(self) -> None:
        """Remove what is recorded, and the order to record; the servers that write are gone."""
        shutil.rmtree(self.control.parent, ignore_errors=True)

    def environment(self, slot: Slot) -> Mapping[str, str]:
        """Return the variables of a server of `slot`."""
        return {SAMPLE_DIR: str(self.segments(slot)), SAMPLE_CONTROL: str(self.control)}


def sample_folder(directory: Path, settings: DeploymentSettings) -> SampleFolder | None:
    """The samples of the deployment in `directory`.

    None where it has MLCTL_SAMPLE_DIR: its servers record for another purpose.
    """
    return None if SAMPLE_DIR in settings.server else SampleFolder(directory)


def redacted() -> tuple[str, ...]:
    """Return the tensors that are never written, from the environment."""
    names = os.environ.get(SAMPLE_REDACT, "").split(",")
    return tuple(name.strip() for name in names if name.strip())
