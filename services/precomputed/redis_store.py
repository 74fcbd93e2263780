"""Generations in Redis: a hash of rows each, and a pointer to the live one of each digest.

Durability depends on the server's configuration: after a crash Redis restarts with older data. Rows
are written before their unit is recorded, so a recorded unit has its rows. Eviction removes whole
hashes, which the number of rows shows. Scripts change pointers and owned hashes atomically.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import redis

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.precomputed.base import (
    NO_UNITS,
    JobRecord,
    PrecomputedRow,
    StoredGeneration,
    StoreError,
    dropped,
    incomplete,
    require_sealed,
    rows_lost,
    surplus,
)

_WRITE_SECONDS = 30.0
_FIELDS = 3_500  # per call of a script; unpack() takes up to 8,000 values
_AT = struct.Struct("<d")
_NAMES = "mlctl:precomputed:names"
_DROPPED, _LOST = -1, -2
_GET = """
local live = redis.call('HGET', KEYS[1], ARGV[1])
if not live then return {} end
return redis.call('HMGET', KEYS[2] .. live, unpack(ARGV, 2))
"""
# Keys: the generation's metadata, rows and units. Records and returns the number of its rows; -1 if
# it was dropped, -2 if it has fewer rows or units than were committed.
_CHECK = """
if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
local rows = redis.call('HLEN', KEYS[2])
if rows < tonumber(redis.call('HGET', KEYS[1], 'rows') or 0) then return -2 end
if redis.call('HLEN', KEYS[3]) < tonumber(ARGV[1]) then return -2 end
redis.call('HSET', KEYS[1], 'rows', rows)
return rows
"""
# Sets fields of the hash KEYS[2]; returns their number, -1 if the generation was dropped.
_WRITE = """
if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
redis.call('HSET', KEYS[2], unpack(ARGV))
return redis.call('HLEN', KEYS[2])
"""
_FLIP = """
if redis.call('HLEN', KEYS[4]) < tonumber(redis.call('HGET', KEYS[1], 'rows') or 0) then
    return 0
end
local digest, live = redis.call('HGET', KEYS[1], 'digest'), KEYS[2]
redis.call('HSET', KEYS[1], 'flipped_at', ARGV[2])
local old = redis.call('HGET', live, digest)
if old and old ~= ARGV[1] then redis.call('HSET', KEYS[3], digest, old) end
redis.call('HSET', live, digest, ARGV[1])
return 1
"""


class RedisStore:
    """The generations of `name` in the Redis server at `url`."""

    def __init__(self, name: str, url: str) -> None:
        self._url = url
        self._name = name
        # The braces make a cluster keep all keys of a name on one node.
        self._prefix = f"mlctl:precomputed:{{{name}}}"
        self._db = _client(url, socket_timeout=_WRITE_SECONDS)

    def reader(self, digest: str, timeout: float) -> RedisReader:
        return RedisReader(self._url, self._prefix, digest, timeout)

    def create(self, digest: str, made_at: float, job: str = "") -> int:
        with _translate_errors():
            number = int(self._db.incr(f"{self._prefix}:last"))
            pipe = self._db.pipeline()
            pipe.sadd(_NAMES, self._name)
            meta = {"digest": digest, "made_at": made_at, "sealed": 0, "job": job}
            pipe.hset(self._meta(number), mapping=meta)
            pipe.sadd(f"{self._prefix}:numbers", number)
            pipe.execute()
            return number

    def commit(
        self,
        generation: int,
        rows: Sequence[PrecomputedRow],
        units: Mapping[str, str] = NO_UNITS,
        committed: int = 0,
    ) -> None:
        with _translate_errors():
            count = self._check(generation, committed)
            values = [(row.key, _AT.pack(row.at) + row.payload) for row in rows]
            for start in range(0, len(values), _FIELDS):
                part = values[start : start + _FIELDS]
                now = self._write(generation, self._rows(generation), part)
                if now < count:
                    raise rows_lost(generation)
                count = now
            self._check(generation, committed)
            # Last, so that a recorded unit has its rows.
            self._write(generation, self._units(generation), list(units.items()))

    def record(self, generation: int) -> JobRecord | None:
        with _translate_errors():
            job, rows = self._db.hmget(self._meta(generation), "job", "rows")
            if not job:
                return None
            found = self._db.hgetall(self._units(generation))
            units = {key.decode(): value.decode() for key, value in found.items()}
            intact = self._db.hlen(self._rows(generation)) >= int(rows or 0)
            return JobRecord(job.decode(), units, intact)

    def seal(self, generation: int, committed: int = 0) -> None:
        with _translate_errors():
            self._check(generation, committed)
            self._write(generation, self._meta(generation), [("sealed", "1")])

    def flip(self, generation: int, at: float) -> None:
        with _translate_errors():
            sealed = self._db.hget(self._meta(generation), "sealed")
            require_sealed(generation, None if sealed is None else sealed == b"1")
            pointers = (f"{self._prefix}:live", f"{self._prefix}:previous")
            keys = (self._meta(generation), *pointers, self._rows(generation))
            if not self._db.eval(_FLIP, len(keys), *keys, generation, repr(at)):
                raise incomplete(generation, "has lost rows")
            for each in surplus(self.generations()):
                self.drop(each.number)

    def drop(self, generation: int) -> None:
        with _translate_errors():
            digest = self._db.hget(self._meta(generation), "digest")
            for pointer in (f"{self._prefix}:previous", f"{self._prefix}:live"):
                if digest is not None and self._db.hget(pointer, digest) == b"%d" % generation:
                    self._db.hdel(pointer, digest)
            self._db.srem(f"{self._prefix}:numbers", generation)
            self._db.unlink(*self._parts(generation))

    def generations(self) -> list[StoredGeneration]:
        with _translate_errors():
            live = self._db.hgetall(f"{self._prefix}:live")
            previous = self._db.hgetall(f"{self._prefix}:previous")
            numbers = sorted(int(each) for each in self._db.smembers(f"{self._prefix}:numbers"))
            found = []
            for number in numbers:
                meta = self._db.hgetall(self._meta(number))
                if not meta:
                    continue  # dropped just now
                digest, text, flipped = meta[b"digest"], b"%d" % number, meta.get(b"flipped_at")
                each = StoredGeneration(
                    number,
                    digest.decode(),
                    float(meta[b"made_at"]),
                    int(self._db.hlen(self._rows(number))),
                    meta[b"sealed"] == b"1",
                    None if flipped is None else float(flipped),
                    live.get(digest) == text,
                    previous.get(digest) == text,
                )
                found.append(each)
            return found

    def close(self) -> None:
        self._db.close()

    def _check(self, generation: int, committed: int) -> int:
        """Return the number of rows; raise if the generation was dropped or has lost some."""
        keys = (self._meta(generation), self._rows(generation), self._units(generation))
        found = int(self._db.eval(_CHECK, len(keys), *keys, committed))
        if found == _LOST:
            raise rows_lost(generation)
        if found == _DROPPED:
            raise dropped(generation)
        return found

    def _write(self, generation: int, key: str, fields: Sequence[tuple[str, str | bytes]]) -> int:
        """Set fields of the hash `key`; return the number of its fields."""
        count = 0
        for start in range(0, len(fields), _FIELDS):
            flat = [part for pair in fields[start : start + _FIELDS] for part in pair]
            count = int(self._db.eval(_WRITE, 2, self._meta(generation), key, *flat))
            if count == _DROPPED:
                raise dropped(generation)
        return count

    def _parts(self, generation: int) -> tuple[str, ...]:
        """Return all keys of a generation."""
        return self._rows(generation), self._units(generation), self._meta(generation)

    def _units(self, generation: int) -> str:
        return f"{self._prefix}:units:{generation}"

    def _meta(self, generation: int) -> str:
        return f"{self._prefix}:meta:{generation}"

    def _rows(self, generation: int) -> str:
        return f"{self._prefix}:rows:{generation}"


class RedisReader:
    """Reads all keys in one round trip, on any thread."""

    quick = False

    def __init__(self, url: str, prefix: str, digest: str, timeout: float) -> None:
        self._db = _client(url, socket_timeout=timeout, socket_connect_timeout=timeout)
        self._script = self._db.register_script(_GET)
        self._pointers = (f"{prefix}:live", f"{prefix}:rows:")
        self._digest = digest

    def get(self, keys: Sequence[str]) -> list[PrecomputedRow | None]:
        with _translate_errors():
            found = self._script(keys=self._pointers, args=(self._digest, *keys))
        if not found:
            return [None] * len(keys)
        return [
            None
            if value is None
            else PrecomputedRow(key, _AT.unpack_from(value)[0], value[_AT.size :])
            for key, value in zip(keys, found, strict=True)
        ]

    def close(self) -> None:
        self._db.close()


def list_names(url: str) -> list[str]:
    """Return the names of all precomputed predictions in the server at `url`."""
    with _translate_errors(), _client(url, socket_timeout=_WRITE_SECONDS) as db:
        return sorted(name.decode() for name in db.smembers(_NAMES))


def _client(url: str, **timeouts: float) -> Any:
    """Return a client that connects on first use; INVALID_INPUT for a URL with invalid options."""
    try:
        return redis.Redis.from_url(url, **timeouts)
    except ValueError as error:
        raise MlctlError(ErrorCode.INVALID_INPUT, f"MLCTL_PRECOMPUTED_STORE: {error}") from error


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except (redis.RedisError, struct.error) as error:
        raise StoreError(str(error)) from error
