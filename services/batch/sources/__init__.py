"""Forms of storage that rows are read from: one module each, found by scheme or suffix."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType

from bundle.errors import ErrorCode, MlctlError
from services.batch.base import Source, SourceRequest
from services.batch.locations import form_of, suffixes_at, without_password

# Each module has `open_source(SourceRequest) -> Source`.
BY_SCHEME: Mapping[str, str] = MappingProxyType(
    {
        "postgresql": "services.batch.sources.query",
        "postgres": "services.batch.sources.query",
        "sqlite": "services.batch.sources.query",
        "duckdb": "services.batch.sources.query",
    }
)
BY_SUFFIX: Mapping[str, str] = MappingProxyType(
    {
        ".parquet": "services.batch.sources.parquet",
        ".pq": "services.batch.sources.parquet",
        ".csv": "services.batch.sources.delimited",
        ".tsv": "services.batch.sources.delimited",
        ".jsonl": "services.batch.sources.jsonl",
        ".ndjson": "services.batch.sources.jsonl",
        ".arrow": "services.batch.sources.ipc",
        ".arrows": "services.batch.sources.ipc",
        ".feather": "services.batch.sources.ipc",
        ".ipc": "services.batch.sources.ipc",
    }
)


def open_source(request: SourceRequest) -> Source:
    """The source that `request.location` means; INVALID_INPUT names the forms that are known."""
    name = form_of(request.location, BY_SCHEME, BY_SUFFIX)
    if name is None:
        found = (form_of(f"x{suffix}", {}, BY_SUFFIX) for suffix in suffixes_at(request.location))
        name = next(filter(None, found), None)
    if name is None:
        known = ", ".join((*BY_SUFFIX, *(f"{scheme}://" for scheme in BY_SCHEME)))
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"there are no rows to read at {without_password(request.location)!r}",
            f"Give a file, a folder, a glob or a URL of one of these: {known}.",
        )
    source: Source = importlib.import_module(name).open_source(request)
    return source
