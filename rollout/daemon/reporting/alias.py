"""Writing a proved revision back to the registry as champion, beside the rollout's ticks.

The registry is a projection of the journal: a failure is recorded and tried again, and never
moves traffic. What `up` started with was never proved here and is not written. The write
happens in a process of its own, because MLflow takes seconds to load and hundreds of megabytes
to keep: `python -m rollout.daemon.reporting.alias`, the revision on its input. It is started near
the end of the bake, so that a promotion need not wait for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence

from bundle.clock import Clock
from bundle.errors import ErrorCode, MlctlError
from rollout.domain.ports import ChampionWriter
from rollout.domain.spec import Revision
from rollout.domain.state_machine import RolloutPhase
from rollout.journal.journal import Journal
from rollout.journal.records import Deployment, Rollout, dumps, value_from

_TIMEOUT = 120.0
_LONGEST_PAUSE = 600.0
_AHEAD_SECONDS = 20.0  # to load MLflow on a busy machine
_NICENESS = 5
_LANDED = (RolloutPhase.FINALIZE, RolloutPhase.DONE)


class ProcessChampions:
    """Runs a command that writes the champion; the revision is JSON on its standard input."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self._waiting: subprocess.Popen[str] | None = None

    def prepare(self) -> None:
        """Start the command, which loads what it needs and waits for its revision. Idempotent.

        One that does not start is left to `write_champion`, which tells it.
        """
        if self._waiting is None:
            with contextlib.suppress(OSError):
                self._waiting = self._start()

    def dismiss(self) -> None:
        """Nothing is to be written: end the command that waits. Idempotent."""
        if (waiting := self._take()) is not None:
            waiting.kill()
            waiting.communicate()

    def write_champion(self, revision: Revision) -> None:
        """REGISTRY_UNAVAILABLE with the command's last words if it fails or takes too long."""
        waiting = self._take()
        if waiting is not None and waiting.poll() is not None:
            waiting.communicate()  # it failed too early to know: the registry may be back
            waiting = None
        try:
            code, stderr = _give(waiting or self._start(), dumps(revision))
        except (OSError, subprocess.TimeoutExpired) as error:
            raise MlctlError(ErrorCode.REGISTRY_UNAVAILABLE, f"{error}") from error
        if code != 0:
            words = stderr.strip().splitlines() or [f"exit code {code}"]
            raise MlctlError(ErrorCode.REGISTRY_UNAVAILABLE, words[-1])

    def _take(self) -> subprocess.Popen[str] | None:
        waiting, self._waiting = self._waiting, None
        return waiting

    def _start(self) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen(
            self._command, stdin=pipe, stdout=subprocess.DEVNULL, stderr=pipe, text=True
        )


def _give(process: subprocess.Popen[str], text: str) -> tuple[int, str]:
    """The exit code of a process that was given `text`, and what it said on stderr."""
    with process:
        try:
            _, stderr = process.communicate(text, _TIMEOUT)
        except BaseException:
            process.kill()
            raise
        return process.returncode, stderr


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

    def foresee(self, rollout: Rollout | None) -> None:
        """Make ready for what the rollout under way is about to promote, or no longer so."""
        if self._attempt is not None:
            return
        if rollout is not None and self._is_near(rollout):
            self._writer.prepare()
        elif rollout is None or rollout.progress.phase not in _LANDED:
            self._writer.dismiss()

    def _is_near(self, rollout: Rollout) -> bool:
        progress, spec = rollout.progress, rollout.spec
        due = progress.since + spec.bake_seconds - _AHEAD_SECONDS
        return spec.alias and progress.phase is RolloutPhase.BAKE and self._now() >= due

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
    """Write the revision on standard input as champion of its model; the exit code says how.

    Without one, because its starter ended or changed its mind, nothing is written.
    """
    os.nice(_NICENESS)  # what serves on this machine goes first
    from registry.mlflow_catalog import MlflowCatalog

    catalog = MlflowCatalog()
    try:
        catalog.connect()
        given = sys.stdin.read()
        if given:
            for digest in value_from(Revision, json.loads(given)).digests:
                catalog.write_champion(digest)
    except MlctlError as error:
        print(error.message, file=sys.stderr)
        return error.spec.exit_code
    return 0


if __name__ == "__main__":
    ended = main()
    sys.stderr.flush()
    # MLflow takes a second to unload, and a rollout waits for the end of this process.
    os._exit(ended)
