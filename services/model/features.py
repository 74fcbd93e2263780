"""Values that a transform looks up by key before `preprocess`, in one call for each batch.

A transform declares them in `FEATURES`; the operator names the store in the environment. A key
without a value gets the declared default. A store that does not answer fails the batch: scores
made of defaults alone would be wrong without a sign of it.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from mlctl.bundle.tensors import DYNAMIC, Datatype, TensorSpec
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.packages import install_hint
from mlctl.services.model.settings import RuntimeSettings

STORE_VARIABLE = "MLCTL_FEATURE_STORE"
_SQLITE = "sqlite://"
# Names are part of keys in Redis and of queries in SQLite.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HINT = f"Set {STORE_VARIABLE} to redis://HOST:6379/0 or sqlite://PATH."


@dataclass(frozen=True, slots=True)
class FeatureTable:
    """A transform's `FEATURES`: the `table`, the input that is its key, and values with defaults.

    The values of a row are scalars; each becomes an array [rows] of its spec's datatype.
    """

    table: str
    key: str
    specs: tuple[TensorSpec, ...]
    defaults: tuple[bool | float | bytes, ...]

    @classmethod
    def parse(cls, declared: object, inputs: Sequence[TensorSpec]) -> FeatureTable:
        """Read a declaration for a transform with the API's `inputs`; ValueError if it is wrong."""
        match declared:
            case {"table": str(table), "key": str(key), "values": {**found}, **others}:
                values = {str(name): each for name, each in found.items()}
            case _:
                raise ValueError("it must be a dict with 'table', 'key' and 'values'")
        if others or not values:
            raise ValueError("it must have 'table', 'key', at least one of 'values', and no more")
        for name in (table, key, *values):
            if not _NAME.fullmatch(name):
                raise ValueError(f"{name!r} is not a name of letters, digits and _")
        spec = next((each for each in inputs if each.name == key), None)
        if spec is None or spec.shape != (DYNAMIC,):
            raise ValueError(f"its key {key!r} is not an input with the shape [-1]")
        if spec.dtype is not Datatype.BYTES and not spec.dtype.is_integer:
            raise ValueError(f"its key {key!r} is {spec.dtype.value}, not BYTES or an integer")
        if taken := values.keys() & {each.name for each in inputs}:
            raise ValueError(f"the inputs have {min(taken)!r} as well")
        pairs = [_value(name, each) for name, each in values.items()]
        specs, defaults = zip(*pairs, strict=True)
        return cls(table, key, specs, defaults)

    def arrays(self, rows: Sequence[Sequence[Any]]) -> dict[str, np.ndarray]:
        """Return the arrays of `rows`, each with one value or None per spec; ValueError."""
        columns = zip(*rows, strict=True)
        return {
            spec.name: _array(spec, default, column)
            for spec, default, column in zip(self.specs, self.defaults, columns, strict=True)
        }


class FeatureStore(Protocol):
    """Where the values are."""

    def rows(self, table: FeatureTable, keys: Sequence[bytes | int]) -> list[Sequence[Any]]:
        """Return the values of each key, None where there is none.

        SOURCE_UNAVAILABLE if the store does not answer in time.
        """
        ...

    def check(self) -> None:
        """Raise SOURCE_UNAVAILABLE if the store does not answer in time."""
        ...


class RedisFeatures:
    """A hash TABLE:KEY for each key, with one field per value; one round trip for a batch."""

    def __init__(self, url: str, timeout: float) -> None:
        try:
            import redis
            from redis.backoff import NoBackoff
            from redis.retry import Retry
        except ModuleNotFoundError as error:
            raise MlctlError(
                ErrorCode.RUNTIME_MISSING,
                f"features in Redis need the package {error.name}",
                install_hint("redis"),
            ) from error
        self._error = redis.RedisError
        # One more try on a fresh connection: Redis closes those that idled.
        retry = Retry(NoBackoff(), 1, (redis.ConnectionError,))
        try:
            self._client = redis.Redis.from_url(
                url, socket_timeout=timeout, socket_connect_timeout=timeout, retry=retry
            )
        except ValueError:  # its text has parts of the URL, which may be of the password
            message = f"{STORE_VARIABLE} is not a URL of Redis"
            raise MlctlError(ErrorCode.INVALID_INPUT, message, _HINT) from None

    def rows(self, table: FeatureTable, keys: Sequence[bytes | int]) -> list[Sequence[Any]]:
        names = [spec.name for spec in table.specs]
        try:
            with self._client.pipeline(transaction=False) as pipeline:
                for key in keys:
                    text = key if isinstance(key, bytes) else b"%d" % key
                    pipeline.hmget(b"%s:%s" % (table.table.encode(), text), names)
                found: list[Sequence[Any]] = pipeline.execute()
        except self._error as error:
            raise _unavailable() from error
        return found

    def check(self) -> None:
        try:
            self._client.ping()
        except self._error as error:
            raise _unavailable() from error


class SqliteFeatures:
    """A table with the key's column and one for each value; one query for a batch."""

    def __init__(self, path: Path, timeout: float) -> None:
        self._uri = f"{path.absolute().as_uri()}?mode=ro"
        self._timeout = timeout

    def rows(self, table: FeatureTable, keys: Sequence[bytes | int]) -> list[Sequence[Any]]:
        texts = [key.decode(errors="replace") if isinstance(key, bytes) else key for key in keys]
        columns = ", ".join(f'"{name}"' for name in (table.key, *(s.name for s in table.specs)))
        query = (
            f'SELECT {columns} FROM "{table.table}" '  # noqa: S608 - checked names
            f'WHERE "{table.key}" IN (SELECT value FROM json_each(?))'
        )
        found = {row[0]: row[1:] for row in self._select(query, (json.dumps(texts),))}
        missing = (None,) * len(table.specs)
        return [found.get(text, missing) for text in texts]

    def check(self) -> None:
        self._select("SELECT name FROM sqlite_schema LIMIT 1")

    def _select(self, query: str, values: Sequence[str] = ()) -> list[tuple[Any, ...]]:
        try:
            # Opened for each batch, so that a file that a job replaced is seen.
            with closing(sqlite3.connect(self._uri, uri=True, timeout=self._timeout)) as db:
                return db.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise _unavailable() from error


def open_store(settings: RuntimeSettings) -> FeatureStore:
    """Return the store of the settings; nothing is connected yet.

    INVALID_INPUT without a store, RUNTIME_MISSING without the package that it needs.
    """
    location = settings.feature_store
    if location is None:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"the transform looks features up, and {STORE_VARIABLE} is not set",
            _HINT,
        )
    timeout = settings.feature_timeout_ms / 1e3
    if location.startswith(_SQLITE):
        return SqliteFeatures(Path(location.removeprefix(_SQLITE)), timeout)
    return RedisFeatures(location, timeout)


class FeatureLookup:
    """Looks the values of `table` up in `store`, and counts; only one thread may call it.

    `seconds` is the time of all lookups so far, `rows` their rows, and `missed` those of keys for
    which the store has no value at all. A server reads them on other threads.
    """

    def __init__(self, table: FeatureTable) -> None:
        self.table = table
        self.store: FeatureStore | None = None
        self.seconds = 0.0
        self.rows = 0
        self.missed = 0

    def __call__(self, keys: np.ndarray) -> dict[str, np.ndarray]:
        """Return the values for `keys` [rows]; ValueError for a stored value of another datatype.

        TypeError and OverflowError too.
        """
        assert self.store is not None
        started = perf_counter()
        try:
            wanted = keys.tolist()
            unique = list(dict.fromkeys(wanted))
            found = dict(zip(unique, self.store.rows(self.table, unique), strict=True))
            rows = [found[key] for key in wanted]
            self.rows += len(rows)
            self.missed += sum(all(value is None for value in row) for row in rows)
            return self.table.arrays(rows)
        finally:
            self.seconds += perf_counter() - started


def _value(name: str, declared: object) -> tuple[TensorSpec, bool | float | bytes]:
    match declared:
        case (str(datatype), default) if datatype in Datatype.__members__.keys() - {"BF16"}:
            spec = TensorSpec(name=name, dtype=Datatype(datatype), shape=(DYNAMIC,))
        case _:
            raise ValueError(f"{name!r} must be (datatype, default), as ('FP32', 0.0)")
    try:
        array = _array(spec, default, [None])
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"the default of {name!r} is not {datatype}: {default!r}") from None
    return spec, array.item()


def _array(spec: TensorSpec, default: Any, values: Sequence[Any]) -> np.ndarray:
    """Return stored `values` as [rows]; stores have numbers as numbers or as text."""
    dtype = np.dtype(spec.dtype.numpy_name)
    readers: dict[str, Callable[[Any], object]] = {"O": _text, "f": float}
    read = readers.get(dtype.kind, int)
    return np.array([read(default if value is None else value) for value in values], dtype)


def _text(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(memoryview(value))


def _unavailable() -> MlctlError:
    return MlctlError(
        ErrorCode.SOURCE_UNAVAILABLE,
        "the feature store does not answer",
        f"Check {STORE_VARIABLE} and the store; the log has the reason.",
    )
