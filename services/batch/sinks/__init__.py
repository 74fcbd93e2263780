"""Forms of storage for answers: one module each, chosen by the location's scheme or by --format."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from bundle.errors import ErrorCode, MlctlError
from services.batch.base import Sink, SinkRequest
from services.batch.folder import LEDGER, STATE
from services.batch.job import BatchConfig
from services.batch.ledger import Ledger
from services.batch.locations import scheme_of, without_password

# Each module has `open_sink(SinkRequest) -> Sink`.
BY_SCHEME: Mapping[str, str] = MappingProxyType(
    {
        "precomputed": "services.batch.sinks.precomputed",
        "postgresql": "services.batch.databases.postgres",
        "postgres": "services.batch.databases.postgres",
        "sqlite": "services.batch.databases.sqlite",
        "duckdb": "services.batch.databases.duckdb",
    }
)
# For `--format`, which says what a folder's parts are; the first one is the default.
BY_FORMAT: Mapping[str, str] = MappingProxyType(
    {
        "parquet": "services.batch.sinks.parquet",
        "jsonl": "services.batch.sinks.jsonl",
        "csv": "services.batch.sinks.delimited",
    }
)


def form_at(location: str) -> str:
    """The form of the parts of the job that is in a folder already, or else the usual one."""
    ledger = Path(location.removeprefix("file://")) / STATE / LEDGER
    job = None
    if ledger.exists():
        with Ledger(ledger) as opened:
            job = opened.stored()
    return (
        next(iter(BY_FORMAT)) if job is None else BatchConfig.from_text(job.facts["wanted"]).format
    )


def open_sink(request: SinkRequest) -> Sink:
    """The sink that `request.location` means: a folder of parts unless it says otherwise."""
    scheme = scheme_of(request.location)
    name = BY_SCHEME.get(scheme or "")
    if scheme in (None, "file"):
        form = request.options.get("format") or form_at(request.location)
        name = BY_FORMAT.get(form)
        if name is None:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"a folder's parts cannot be of the form {form!r}",
                f"Give one of: {', '.join(BY_FORMAT)}.",
            )
    if name is None:
        known = ", ".join(f"{scheme}://" for scheme in BY_SCHEME)
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"answers cannot be written to {without_password(request.location)!r}",
            f"Give a folder, or a URL of one of these: {known}.",
        )
    sink: Sink = importlib.import_module(name).open_sink(request)
    return sink
