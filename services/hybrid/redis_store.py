"""Generations in Redis: a hash of rows each, and a pointer for each digest that scripts turn.

How durable they are is what the server's configuration says.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import redis

from bundle.errors import ErrorCode, MlctlError
from services.hybrid.base import Generation, Row, StoreError, require_sealed, surplus

_WRITE_SECONDS = 30.0
_ROWS = 5_000
_AT = struct.Struct("<d")
_NAMES = "mlctl:hybrid:names"
_GET = """
local live = redis.call('HGET', KEYS[1], ARGV[1])
if not live then return {} end
return redis.call('HMGET', KEYS[2] .. live, unpack(ARGV, 2))
"""
_FLIP = """
local digest, live = redis.call('HGET', KEYS[1], 'digest'), KEYS[2]
redis.call('HSET', KEYS[1], 'flipped_at', ARGV[2])
local old = redis.call('HGET', live, digest)
if old and old ~= ARGV[1] then redis.call('HSET', KEYS[3], digest, old) end
redis.call('HSET', live, digest, ARGV[1])
"""


class RedisStore:
    """The generations called `name` in the server at `url`."""

    def __init__(self, name: str, url: str) -> None:
        self._url = url
        self._name = name
        # In braces: what a cluster keeps on one of its machines.
        self._prefix = f"mlctl:hybrid:{{{name}}}"
        self._db = _client(url, socket_timeout=_WRITE_SECONDS)

    def reader(self, digest: str, timeout: float) -> RedisReader:
        return RedisReader(self._url, self._prefix, digest, timeout)

    def create(self, digest: str, made_at: float) -> int:
        with _told():
            number = int(self._db.incr(f"{self._prefix}:last"))
            meta = {"digest": digest, "made_at": made_at, "sealed": 0}
            pipe = self._db.pipeline()
            pipe.sadd(_NAMES, self._name)
            pipe.hset(self._meta(number), mapping=meta)
            pipe.sadd(f"{self._prefix}:numbers", number)
            pipe.execute()
            return number

    def put(self, generation: int, rows: Sequence[Row]) -> None:
        with _told():
            if not self._db.exists(self._meta(generation)):
                require_sealed(generation, None)
            self._put(generation, rows)

    def write_back(self, digest: str, rows: Sequence[Row]) -> None:
        with _told():
            live = self._db.hget(f"{self._prefix}:live", digest)
            if live is None:
                number = self.create(digest, rows[0].at)
                self.seal(number)
                self.flip(number, rows[0].at)
            else:
                number = int(live)
            self._put(number, rows)

    def seal(self, generation: int) -> None:
        with _told():
            self._db.hset(self._meta(generation), "sealed", 1)

    def flip(self, generation: int, at: float) -> None:
        with _told():
            sealed = self._db.hget(self._meta(generation), "sealed")
            require_sealed(generation, None if sealed is None else sealed == b"1")
            keys = (self._meta(generation), f"{self._prefix}:live", f"{self._prefix}:previous")
            self._db.eval(_FLIP, len(keys), *keys, generation, repr(at))
            for each in surplus(self.generations()):
                self.drop(each.number)

    def drop(self, generation: int) -> None:
        with _told():
            digest = self._db.hget(self._meta(generation), "digest")
            for pointer in (f"{self._prefix}:previous", f"{self._prefix}:live"):
                if digest is not None and self._db.hget(pointer, digest) == b"%d" % generation:
                    self._db.hdel(pointer, digest)
            self._db.srem(f"{self._prefix}:numbers", generation)
            self._db.unlink(self._rows(generation), self._meta(generation))

    def generations(self) -> list[Generation]:
        with _told():
            live = self._db.hgetall(f"{self._prefix}:live")
            previous = self._db.hgetall(f"{self._prefix}:previous")
            numbers = sorted(int(each) for each in self._db.smembers(f"{self._prefix}:numbers"))
            found = []
            for number in numbers:
                meta = self._db.hgetall(self._meta(number))
                if not meta:
                    continue  # dropped just now
                digest, text, flipped = meta[b"digest"], b"%d" % number, meta.get(b"flipped_at")
                each = Generation(
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

    def _put(self, generation: int, rows: Sequence[Row]) -> None:
        for start in range(0, len(rows), _ROWS):
            part = rows[start : start + _ROWS]
            values = {row.key: _AT.pack(row.at) + row.payload for row in part}
            self._db.hset(self._rows(generation), mapping=values)

    def _meta(self, generation: int) -> str:
        return f"{self._prefix}:meta:{generation}"

    def _rows(self, generation: int) -> str:
        return f"{self._prefix}:rows:{generation}"


class RedisReader:
    """Reads in one round trip; may be asked on any thread."""

    quick = False

    def __init__(self, url: str, prefix: str, digest: str, timeout: float) -> None:
        self._db = _client(url, socket_timeout=timeout, socket_connect_timeout=timeout)
        self._script = self._db.register_script(_GET)
        self._pointers = (f"{prefix}:live", f"{prefix}:rows:")
        self._digest = digest

    def get(self, keys: Sequence[str]) -> list[Row | None]:
        with _told():
            found = self._script(keys=self._pointers, args=(self._digest, *keys))
        if not found:
            return [None] * len(keys)
        return [
            None if value is None else Row(key, _AT.unpack_from(value)[0], value[_AT.size :])
            for key, value in zip(keys, found, strict=True)
        ]

    def close(self) -> None:
        self._db.close()


def list_names(url: str) -> list[str]:
    """The names of all answers in the server at `url`."""
    with _told(), _client(url, socket_timeout=_WRITE_SECONDS) as db:
        return sorted(name.decode() for name in db.smembers(_NAMES))


def _client(url: str, **timeouts: float) -> Any:
    """A client that connects with its first command; INVALID_INPUT for a URL with bad options."""
    try:
        return redis.Redis.from_url(url, **timeouts)
    except ValueError as error:
        raise MlctlError(ErrorCode.INVALID_INPUT, f"MLCTL_HYBRID_STORE: {error}") from error


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except (redis.RedisError, struct.error) as error:
        raise StoreError(str(error)) from error
