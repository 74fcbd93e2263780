"""Forms of storage that answers are written to: one module each, found by scheme or suffix."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType

from bundle.errors import ErrorCode, MlctlError
from services.batch.base import Sink, SinkRequest
from services.batch.locations import form_of, scheme_of

# Each module has `open_sink(SinkRequest) -> Sink`.
BY_SCHEME: Mapping[str, str] = MappingProxyType({})
BY_SUFFIX: Mapping[str, str] = MappingProxyType({})
# For `--format`, which says what a folder's parts are; the first one is the default.
BY_FORMAT: Mapping[str, str] = MappingProxyType({"parquet": "services.batch.sinks.parquet"})


def open_sink(request: SinkRequest) -> Sink:
    """The sink that `request.location` means: a folder of parts unless it says otherwise."""
    name = form_of(request.location, BY_SCHEME, BY_SUFFIX)
    if name is None and scheme_of(request.location) in (None, "file"):
        name = BY_FORMAT.get(request.options.get("format") or next(iter(BY_FORMAT)))
        if name is None:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"a folder's parts cannot be of the form {request.options['format']!r}",
                f"Give one of: {', '.join(BY_FORMAT)}.",
            )
    if name is None:
        known = ", ".join((*BY_SUFFIX, *(f"{scheme}://" for scheme in BY_SCHEME)))
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"answers cannot be written to {request.location!r}",
            f"Give a folder{f', or one of these: {known}' if known else ''}.",
        )
    sink: Sink = importlib.import_module(name).open_sink(request)
    return sink
