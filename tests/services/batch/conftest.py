"""The databases that the tests of batches share."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.postgres import PostgresServer

Place = Callable[..., str]
_numbers = itertools.count()


@pytest.fixture(scope="package")
def server() -> Iterator[PostgresServer]:
    """A real PostgreSQL; a test that ends it must start it again."""
    made = PostgresServer()
    yield made
    made.close()


@pytest.fixture(params=["postgresql", "sqlite", "duckdb"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Makes locations of a table that nobody has used, with the given parameters."""
    table = f"scores{next(_numbers)}"
    if request.param == "postgresql":
        base = f"{request.getfixturevalue('server').url}&"
    else:
        base = f"{request.param}://{tmp_path}/out.db?"

    def make(**parameters: str) -> str:
        return base + "&".join(f"{k}={v}" for k, v in {"table": table, **parameters}.items())

    return make
