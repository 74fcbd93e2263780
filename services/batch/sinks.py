"""Open the sink that `--out` means."""

from __future__ import annotations

from collections.abc import Mapping

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.batch.databases.base import TableRef
from mlctl.services.batch.databases.drivers import SCHEMES, open_database
from mlctl.services.batch.databases.sink import DatabaseSink
from mlctl.services.batch.folder import FolderSink, read_job
from mlctl.services.batch.formats.parts import PART_FORMATS
from mlctl.services.batch.locations import scheme_of, without_password
from mlctl.services.batch.storage import BUCKET_SCHEMES, open_storage
from mlctl.services.batch.units import Sink

_PRECOMPUTED = "precomputed"


def part_format(location: str) -> str:
    """Return the format of the job that already writes to a folder or bucket, or the default."""
    default = next(iter(PART_FORMATS))
    if scheme_of(location) not in (None, "file", *BUCKET_SCHEMES):
        return default
    job = read_job(open_storage(location))
    return default if job is None else str(job["format"])


def open_sink(
    location: str, form: str = "parquet", options: Mapping[str, str] | None = None
) -> Sink:
    """Return the sink at `location`; `form` is the format of the files of a folder or bucket."""
    scheme = scheme_of(location) or "file"
    if scheme == _PRECOMPUTED:
        from mlctl.services.batch.precomputed_sink import open_precomputed

        return open_precomputed(location, options or {})
    if scheme in SCHEMES:
        table = TableRef.parse(location, options or {})
        return DatabaseSink(open_database(table.url, table.shown, table.table), table)
    if scheme not in ("file", *BUCKET_SCHEMES):
        known = ", ".join(f"{each}://" for each in (*BUCKET_SCHEMES, _PRECOMPUTED, *SCHEMES))
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"answers cannot be written to {without_password(location)!r}",
            f"Give a folder, or a URL of one of these: {known}.",
        )
    if form not in PART_FORMATS:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"--format {form}: not a format of part files",
            f"Give one of: {', '.join(PART_FORMATS)}.",
        )
    return FolderSink(open_storage(location), form)
