"""A job's lease: renewed while the job runs, whatever the store does, and ended with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.precomputed.base import PrecomputedStore, StoreError
from services.precomputed.lease import Lease
from services.precomputed.redis_store import RedisStore
from services.precomputed.sqlite import SqliteStore
from tests.services.precomputed.servers import redis_server
from tests.support.wait import wait_until


class Renewals:
    """A store that answers `claim` with what is in `answers`, and then with True."""

    def __init__(self, *answers: bool | StoreError) -> None:
        self.answers = list(answers)
        self.claims = 0
        self.released = False

    def claim(self, _generation: int, _owner: str) -> bool:
        answer = self.answers.pop(0) if self.answers else True
        self.claims += 1
        if isinstance(answer, StoreError):
            raise answer
        return answer

    def release(self, _generation: int, _owner: str) -> None:
        self.released = True


def test_lease__store_is_away_for_a_while__is_renewed_all_the_same() -> None:
    store = Renewals(True, StoreError("away"))
    lease = Lease(store, 1, "me", every=0.01)  # type: ignore[arg-type]
    wait_until(lambda: store.claims >= 5)
    lease.close()
    claims = store.claims
    assert store.released
    assert store.claims == claims


def test_lease__taken_by_another_job__is_not_claimed_again() -> None:
    store = Renewals(True, False)
    lease = Lease(store, 1, "me", every=0.01)  # type: ignore[arg-type]
    lease._thread.join()
    assert store.claims == 2
    lease.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_claim__lease_of_another_owner__only_after_it_has_run_out(
    kind: str, tmp_path: Path
) -> None:
    if kind == "sqlite":
        _check_claims(SqliteStore(tmp_path / "a.db"), SqliteStore(tmp_path / "a.db", lease=0.2))
        return
    with redis_server(tmp_path) as server:
        _check_claims(RedisStore("a", server.url), RedisStore("a", server.url, lease=0.2))


def _check_claims(lasting: PrecomputedStore, short: PrecomputedStore) -> None:
    number = lasting.create("blue", 1.0, "a")
    assert not short.claim(number, "b")
    assert short.claim(number, "a")
    wait_until(lambda: lasting.claim(number, "b"))
    assert not short.claim(number, "a")
    assert not lasting.claim(number + 1, "a")
    lasting.release(number, "a")
    assert not short.claim(number, "a")
    lasting.release(number, "b")
    assert short.claim(number, "a")
    lasting.close()
    short.close()
