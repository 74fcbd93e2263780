"""Write the promoted revision back to the registry as champion.

The registry follows the journal: a failure is recorded once, retried, and never moves traffic. What
`up` started was never proved here and is not written. The write runs in a process of its own,
because MLflow takes seconds to load and hundreds of megabytes to keep:
`python -m mlctl.rollout.daemon.reporting.alias`, with the revision on its standard input.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator

from mlctl.core.errors import MlctlError
from mlctl.core.garbage import rare_collection
from mlctl.rollout.daemon.reporting.outbox import DeliveryError
from mlctl.rollout.domain.spec import Revision
from mlctl.rollout.journal.journal import Journal
from mlctl.rollout.journal.records import Deployment, value_from

WRITE_SECONDS = 120.0
_NICENESS = 5


class AliasSink:
    """Keeps the registry's champion equal to the promoted revision of the deployment `name`.

    `write` writes a revision, or raises DeliveryError.
    """

    name = "alias"

    def __init__(self, name: str, journal: Journal, write: Callable[[Revision], None]) -> None:
        self._deployment = name
        self._journal = journal
        self._write = write

    def pending(self) -> str | None:
        deployment = self._journal.deployment(self._deployment)
        return deployment.live.digest if self._owed(deployment) else None

    def deliver(self, after: int) -> Iterator[int]:
        deployment = self._journal.deployment(self._deployment)
        name, live = deployment.name, deployment.live
        try:
            self._write(live)
        except DeliveryError as error:
            promotion = self._journal.promotion(name)
            events = self._journal.events(name, rollout=promotion, ticks=False)
            if all(event.kind != "champion_failed" for event in events):
                body = {"digest": live.digest, "message": str(error)}
                self._journal.append(name, promotion, "champion_failed", body, deployment.epoch)
            raise
        self._journal.set_champion(name, live.digest, deployment.epoch)
        yield after

    def close(self) -> None:
        """Nothing is open."""

    def _owed(self, deployment: Deployment) -> bool:
        if not deployment.up or deployment.champion == deployment.live.digest:
            return False
        promotion = self._journal.promotion(deployment.name)
        return promotion is not None and self._journal.rollout(promotion).spec.alias


def main() -> int:
    """Write the revision on standard input as champion of its models; return the exit code."""
    os.nice(_NICENESS)  # what serves on this machine goes first
    from mlctl.registry.mlflow_catalog import MlflowCatalog

    catalog = MlflowCatalog()
    try:
        catalog.connect()
        for digest in value_from(Revision, json.load(sys.stdin)).digests:
            catalog.write_champion(digest)
    except MlctlError as error:
        print(error.message, file=sys.stderr)
        return error.spec.exit_code
    return 0


if __name__ == "__main__":
    with rare_collection():  # `mlctl promote` waits for the end of this process
        ended = main()
    sys.exit(ended)
