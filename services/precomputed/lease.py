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
        """End the thread and the lease, so that another machine can go on at once."""
        self._closed.set()
        self._thread.join()
        try:
            self._store.release(self._generation, self._owner)
        except StoreError as error:
            logger.warning("the lease of generation %d ends later: %s", self._generation, error)

    def _renew(self) -> None:
        while not self._closed.wait(self._every):
            try:
                if not self._store.claim(self._generation, self._owner):
                    return  # another job has it: the next commit fails and says so
            except StoreError as error:
                # The store may come back before the lease runs out; commits report that it is away.
                logger.info("the lease of generation %d waits: %s", self._generation, error)
