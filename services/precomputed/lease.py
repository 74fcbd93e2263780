"""A job's lease on the generation that it writes, renewed while the job runs."""

from __future__ import annotations

import logging
import threading

from services.precomputed.base import LEASE_SECONDS, PrecomputedStore, StoreError

logger = logging.getLogger("mlctl.precomputed")


class Lease:
    """Renews the lease of `owner` on `generation` in a thread, until it is closed."""

    def __init__(
        self, store: PrecomputedStore, generation: int, owner: str, every: float = LEASE_SECONDS / 4
    ) -> None:
        self._store = store
        self._generation = generation
        self._owner = owner
        self._every = every
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="mlctl-lease", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread and the lease, so that another machine can take over immediately."""
        self._closed.set()
        self._thread.join()
        try:
            self._store.release(self._generation, self._owner)
        except StoreError as error:
            logger.warning(
                "the lease of generation %d could not be released: %s",
                self._generation,
                error,
            )

    def _renew(self) -> None:
        while not self._closed.wait(self._every):
            try:
                if not self._store.claim(self._generation, self._owner):
                    return  # another job owns it, so the next commit raises JOB_RUNNING
            except StoreError as error:
                # The store may recover before the lease expires; commits report an outage.
                logger.warning("generation %d: cannot renew the lease: %s", self._generation, error)
