"""The log in an SQLite file: the contract, leases, fencing, partitions, retention, old files."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from bundle.clock import ManualClock
from bundle.errors import ErrorCode, MlctlError
from services.stream.base import (
    Commit,
    Guarantee,
    LinkRequest,
    LostPartitionsError,
    Outgoing,
    Place,
)
from services.stream.transports.sqlite import SqliteLink, transport
from tests.services.stream.contract import (
    Broker,
    Places,
    TransportContract,
    answer,
    numbered,
    numbers,
    open_link,
    read,
    send,
    take,
)


def places_in(folder: Path, options: str = "") -> Callable[[str], Place]:
    return lambda name: Place.parse(f"sqlite://{folder / 'events.db'}?lease=0.6{options}#{name}")


class TestSqlite(TransportContract):
    """One partition."""

    @pytest.fixture
    def broker(self, tmp_path: Path) -> Broker:
        return Broker(places_in(tmp_path), Guarantee.EXACTLY_ONCE)


class TestPartitions(TransportContract):
    """Several of them."""

    @pytest.fixture
    def broker(self, tmp_path: Path) -> Broker:
        return Broker(places_in(tmp_path, "&partitions=3"), Guarantee.EXACTLY_ONCE)
