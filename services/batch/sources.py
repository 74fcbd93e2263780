"""Open the source that `--in` means."""

from __future__ import annotations

from collections.abc import Mapping

from mlctl.services.batch.databases.drivers import SCHEMES
from mlctl.services.batch.databases.query import QuerySource
from mlctl.services.batch.files import FileSource
from mlctl.services.batch.job import UNIT_ROWS
from mlctl.services.batch.locations import scheme_of
from mlctl.services.batch.units import Source


def open_source(
    location: str, unit_rows: int = UNIT_ROWS, options: Mapping[str, str] | None = None
) -> Source:
    """Return the rows at `location`; INVALID_INPUT lists the supported formats."""
    if scheme_of(location) in SCHEMES:
        return QuerySource(location, unit_rows, options or {})
    return FileSource(location, unit_rows, options or {})
