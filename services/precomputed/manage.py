"""Operations on precomputed predictions: list names and generations, flip, roll back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.precomputed.base import PrecomputedStore, StoredGeneration, StoreError
from mlctl.services.precomputed.settings import read_store_location
from mlctl.services.precomputed.store_urls import list_names, open_store

T = TypeVar("T")


def names() -> list[str]:
    """Return the names of all precomputed predictions in the store."""
    try:
        return list_names(read_store_location())
    except StoreError as error:
        raise _unavailable(error) from error


def generations(name: str) -> list[StoredGeneration]:
    """Return the generations of `name`; NOT_FOUND if it has none."""
    return _with_store(name, lambda _store, found: found)


def flip(name: str, generation: int, at: float) -> StoredGeneration:
    """Make `generation` the live one of its digest, at wall time `at`; NOT_FOUND, NOT_READY."""

    def act(store: PrecomputedStore, _found: Sequence[StoredGeneration]) -> StoredGeneration:
        store.flip(generation, at)
        return next(each for each in store.generations() if each.number == generation)

    return _with_store(name, act)


def rollback(name: str, digest: str | None, at: float) -> StoredGeneration:
    """Make the previous generation of the digest that starts with `digest` live again.

    Without `digest` there must be only one; INVALID_INPUT if there are several.
    """

    def act(store: PrecomputedStore, found: Sequence[StoredGeneration]) -> StoredGeneration:
        candidates = [
            each for each in found if each.previous and each.digest.startswith(digest or "")
        ]
        if not candidates:
            raise MlctlError(
                ErrorCode.NOT_FOUND,
                f"{name} has no previous generation",
                f"`mlctl precomputed show {name}` lists its generations.",
            )
        if len(candidates) > 1:
            digests = ", ".join(each.digest[:12] for each in candidates)
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"{name} has previous generations of several models: {digests}",
                "Choose one with --digest.",
            )
        store.flip(candidates[0].number, at)
        return next(each for each in store.generations() if each.number == candidates[0].number)

    return _with_store(name, act)


def _with_store(name: str, act: Callable[[PrecomputedStore, list[StoredGeneration]], T]) -> T:
    store = open_store(name, read_store_location())
    try:
        found = store.generations()
        if not found:
            raise MlctlError(
                ErrorCode.NOT_FOUND,
                f"no precomputed predictions are named {name!r}",
                "`mlctl precomputed list` lists all names.",
            )
        return act(store, found)
    except StoreError as error:
        raise _unavailable(error) from error
    finally:
        store.close()


def _unavailable(error: StoreError) -> MlctlError:
    return MlctlError(
        ErrorCode.SINK_UNAVAILABLE,
        f"the store of precomputed predictions is unavailable: {error}",
        "Check MLCTL_PRECOMPUTED_STORE; `mlctl doctor` tests it with MLCTL_PRECOMPUTED set.",
    )
