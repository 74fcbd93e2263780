"""Writing a proved revision back to the registry as champion, beside the rollout's ticks.

The registry is a projection of the journal: a failure is recorded and tried again, and never
moves traffic. What `up` started with was never proved here and is not written. The write
happens in a process of its own, because MLflow takes seconds to load and hundreds of megabytes
to keep: `python -m rollout.champion`, the revision on its input.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Sequence

from bundle.clock import Clock
from bundle.errors import ErrorCode, MlctlError
from rollout.journal import Journal
from rollout.model import Revision
from rollout.ports import ChampionWriter
from rollout.records import Deployment, dumps

_TIMEOUT = 120.0
_LONGEST_PAUSE = 600.0


class ProcessChampions:
    """Runs a command that writes the champion; the revision is JSON on its standard input."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)

    def write_champion(self, revision: Revision) -> None:
        """REGISTRY_UNAVAILABLE with the command's last words if it fails or takes too long."""
        try:
            done = subprocess.run(
                self._command,
                input=dumps(revision),
                capture_output=True,
                text=True,
                timeout=_TIMEOUT,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise MlctlError(ErrorCode.REGISTRY_UNAVAILABLE, f"{error}") from error
        if done.returncode != 0:
            words = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise MlctlError(ErrorCode.REGISTRY_UNAVAILABLE, words[-1])


class _Attempt:
    """One write in a thread of its own; `error` is settled before `done` is set."""

    def __init__(self, writer: ChampionWriter, revision: Revision) -> None:
        self.revision = revision
        self.error: MlctlError | None = None
        self.done = threading.Event()
        self._writer = writer
        # A daemon thread: the write is idempotent and must not hold up the daemon's end.
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self._writer.write_champion(self.revision)
        except MlctlError as error:
            self.error = error
        finally:
            self.done.set()


class ChampionKeeper:
    """Keeps the registry's champion equal to the promoted revision, one attempt at a time."""

    def __init__(
        self, writer: ChampionWriter, journal: Journal, clock: Clock, retry_seconds: float
    ) -> None:
        self._writer = writer
        self._journal = journal
        self._clock = clock
        self._retry_seconds = retry_seconds
        self._attempt: _Attempt | None = None
        self._failed: str | None = None
        self._not_before = 0.0
        self._pause = retry_seconds

    def poll(self, deployment: Deployment) -> None:
        """Take in a finished attempt; start one if a promoted digest is not written yet."""
        if self._attempt is not None:
            if not self._attempt.done.is_set():
                return
            self._take_in(deployment, self._attempt)
            self._attempt = None
        elif self._owed(deployment) and self._may_try(deployment):
            self._attempt = _Attempt(self._writer, deployment.live)

    @property
    def idle(self) -> bool:
        """Whether no attempt is under way."""
        return self._attempt is None

    def settled(self, deployment: Deployment) -> bool:
        """Whether the live digest is written or need not be, or was tried at least once."""
        return deployment.live.digest == self._failed or not self._owed(deployment)

    def _owed(self, deployment: Deployment) -> bool:
        if deployment.champion == deployment.live.digest:
            return False
        promotion = self._journal.promotion(deployment.name)
        return promotion is not None and self._journal.rollout(promotion).spec.alias

    def _may_try(self, deployment: Deployment) -> bool:
        # The pause is for what failed; another revision is tried at once.
        return deployment.live.digest != self._failed or self._now() >= self._not_before

    def _take_in(self, deployment: Deployment, attempt: _Attempt) -> None:
        digest = attempt.revision.digest
        if attempt.error is None:
            self._failed = None
            self._journal.set_champion(deployment.name, digest, deployment.epoch)
            return
        doubled = min(2 * self._pause, max(_LONGEST_PAUSE, self._retry_seconds))
        self._pause = doubled if self._failed == digest else self._retry_seconds
        self._failed = digest
        self._not_before = self._now() + self._pause
        body = {"digest": digest, "message": attempt.error.message, "again_in": self._pause}
        name, rollout = deployment.name, self._journal.promotion(deployment.name)
        self._journal.append(name, rollout, "champion_failed", body, deployment.epoch)

    def _now(self) -> float:
        return self._clock.wall()


def main() -> int:
    """Write the revision on standard input as champion of its model; the exit code says how."""
    from registry.mlflow_catalog import MlflowCatalog

    revision = Revision(**json.loads(sys.stdin.read()))
    try:
        MlflowCatalog().write_champion(revision.digest)
    except MlctlError as error:
        print(error.message, file=sys.stderr)
        return error.spec.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
