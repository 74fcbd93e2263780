"""The database server that the tests of batches share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.postgres import PostgresServer


@pytest.fixture(scope="package")
def server() -> Iterator[PostgresServer]:
    """A real PostgreSQL; a test that ends it must start it again."""
    made = PostgresServer()
    yield made
    made.close()
