"""Redis Streams, exactly once inside one server: one script adds answers and acknowledges messages.

`redis://HOST:PORT/DATABASE#STREAM`, or `rediss://` over TLS. Source, answers and dead letters are
in one server, not spread over a cluster. How durable they are depends on the server's settings.

An entry's field `value` is the message, `key` its key, and the others are headers, so that
`XADD orders * value '{"x": 1}' trace abc` is a message with a header.
"""

from __future__ import annotations

import os
import secrets
import socket
import ssl
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Self
from urllib.parse import urlencode

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.stream.answer_headers import LEFT_OUT, OURS, is_dead_letter
from mlctl.services.stream.base import (
    ABANDONED_SECONDS,
    Commit,
    ConnectionRequest,
    GroupStatus,
    Guarantee,
    Headers,
    LostPartitionsError,
    Message,
    Outgoing,
    StreamConnection,
    StreamStatus,
    StreamUrl,
    Transport,
    group_in_use,
    no_group,
)
from mlctl.services.stream.transports import redis_scripts as scripts

_TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname")
_OPTIONS = (*_TLS_OPTIONS, "idle_s", "field", "trim")
_TIMEOUT_SECONDS = 10.0
_IDLE_SECONDS = 15.0
_TRIM_SECONDS = 10.0
_PAGE = 1000
# The server's limits: arguments of a command, and headers that a script can pass to XADD.
_MAX_ARGUMENTS = 1_000_000
MAX_HEADERS = 2000
# An id after every entry, but not the largest, which would mean new entries: reading the pending
# entries after it only shows the server that this consumer is alive.
_END = b"18446744073709551615-18446744073709551614"
# Errors that pass, also when they happened inside a script.
_TRANSIENT = (
    "OOM", "LOADING", "READONLY", "NOREPLICAS", "MASTERDOWN", "MISCONF", "BUSY", "TRYAGAIN",
    "OutOfMemory", "ReadOnly",
)  # fmt: skip
_VALUE, _KEY = b"value", b"key"
# Prefix of a header whose name is that of a message's own field.
_ESCAPE = b"header."
# Prefix of a header whose value is null.
_NULL = b"null."


# ---- clients and errors


def connect(url: StreamUrl) -> Any:
    """Return a client of the server of `url`, which connects when it is first used.

    It has one connection and never repeats a command by itself: whether a step that was
    interrupted may be repeated is decided here.
    """
    url.check_options(_OPTIONS)
    url.check_topic("redis://localhost:6379/0#orders")
    credentials = {
        name: os.environ[variable]
        for name, variable in (
            ("username", "MLCTL_REDIS_USERNAME"),
            ("password", "MLCTL_REDIS_PASSWORD"),
        )
        if os.environ.get(variable)
    }
    query = urlencode(_tls_options(url))
    try:
        client: Any = redis.Redis.from_url(
            f"{url.scheme}://{url.address}{'?' if query else ''}{query}",
            single_connection_client=False,
            max_connections=1,
            protocol=2,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=_TIMEOUT_SECONDS,
            socket_connect_timeout=_TIMEOUT_SECONDS,
            socket_keepalive=True,
            **credentials,
        )
    except ValueError:
        # The library's message may contain the password.
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{url.redacted()} is not the address of a Redis server",
            "Write it as redis://localhost:6379/0#orders.",
        ) from None
    # Raw entries: the library's dictionaries drop fields that occur twice.
    for command in ("XREADGROUP", "XREAD", "XRANGE", "XREVRANGE"):
        client.set_response_callback(command, lambda reply, **_: reply)
    return client


def _tls_options(url: StreamUrl) -> dict[str, str]:
    """Return the TLS options of `url`; INVALID_INPUT if their files cannot be used."""
    options = {name: url.options[name] for name in _TLS_OPTIONS if name in url.options}
    if options and url.scheme != "rediss":
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{url.redacted()} does not use TLS, so {next(iter(options))} has no effect",
            "Write it as rediss://HOST:PORT/DATABASE#STREAM.",
        )
    try:
        # The library would report an unusable file later, and for each connection.
        context = ssl.create_default_context(cafile=options.get("ssl_ca_certs"))
        if {"ssl_certfile", "ssl_keyfile"} & options.keys():
            certificate = options.get("ssl_certfile", "")
            context.load_cert_chain(certificate, options.get("ssl_keyfile"), lambda: "")
    except OSError as error:  # an SSLError is one
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"the TLS files of {url.redacted()} cannot be used: {error.strerror or error}",
            "PEM is needed: the authority's certificate, your own, and its key without a password.",
        ) from error
    return options


@contextmanager
def translate_errors(url: StreamUrl) -> Iterator[None]:
    """Translate the library's errors; BROKER_UNAVAILABLE is the only one to try again after."""
    try:
        yield
    except redis.AuthenticationError as error:
        raise MlctlError(
            ErrorCode.UNAUTHENTICATED,
            f"{url.redacted()} does not accept the user name or the password",
            "Set them in the URL, or as MLCTL_REDIS_USERNAME and MLCTL_REDIS_PASSWORD.",
        ) from error
    except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
        raise _unavailable(url, error) from error
    except redis.RedisError as error:
        raise _translated(url, f"{type(error).__name__} {error}") from error


def _unavailable(url: StreamUrl, error: BaseException) -> MlctlError:
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    message, hint = f"{url.redacted()} does not answer", ""
    if isinstance(cause, ssl.SSLCertVerificationError):
        message = f"the certificate of {url.redacted()} is not accepted: {cause.verify_message}"
        hint = "Check the host name, and set ssl_ca_certs (docs/brokers.md)."
    elif isinstance(cause, ssl.SSLError):
        message = f"{url.redacted()} does not answer over TLS: {cause.reason or cause.strerror}"
        hint = "It may require a client certificate (docs/brokers.md)."
    return MlctlError(ErrorCode.BROKER_UNAVAILABLE, message, hint)


def _translated(url: StreamUrl, text: str) -> MlctlError:
    if any(word in text for word in _TRANSIENT):
        return MlctlError(
            ErrorCode.BROKER_UNAVAILABLE, f"{url.redacted()} accepts no writes: {text}"
        )
    if "NOGROUP" in text or "no such key" in text:
        return _missing(url)
    if "NoPermission" in text or "NOPERM" in text:
        return MlctlError(ErrorCode.NOT_PERMITTED, f"{url.redacted()}: {text}")
    if "WRONGTYPE" in text:
        return MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{url.redacted()}: one of the keys is not a stream",
            "Name a stream, or a key that does not exist.",
        )
    return MlctlError(ErrorCode.INTERNAL, f"{url.redacted()}: {text}")


def _missing(url: StreamUrl) -> MlctlError:
    return MlctlError(
        ErrorCode.NOT_FOUND,
        f"{url.redacted()} or its group does not exist",
        "If it was deleted while a stream ran, start that run again: it begins as a new group.",
    )


# ---- messages and entries


def read_entries(topic: str, entries: Iterable[Any], field: bytes = _VALUE) -> list[Message]:
    """Return the messages of [id, [name, value, ...]]; deleted entries are left out."""
    found = []
    for entry_id, fields in entries:
        if fields is None:
            continue
        text = entry_id.decode()
        time_ms = int(text[: text.index("-")])
        if len(fields) == 2 and fields[0] == field:
            found.append(Message(topic, text, fields[1], None, (), time_ms))
            continue
        value: bytes | None = None
        key: bytes | None = None
        headers: list[tuple[str, bytes | None]] = []
        pairs = iter(fields)
        for name, content in zip(pairs, pairs, strict=True):
            if value is None and name == field:
                value = content
            elif key is None and name == _KEY:
                key = content
            else:
                headers.append(_header_of(name, content))
        found.append(Message(topic, text, value, key, tuple(headers), time_ms))
    return found


def arguments(messages: Sequence[Outgoing]) -> list[Any]:
    """Return messages for a script: their number, then each as [count, name, content, name, ...].

    PAYLOAD_TOO_LARGE for too many headers; a dead letter is sent without its source's.
    """
    flat: list[Any] = [len(messages)]
    for message in messages:
        value, key, headers = message
        if len(headers) > MAX_HEADERS:
            headers = _own_headers(message)
        fields = [] if value is None else [_VALUE, value]
        if key is not None:
            fields += (_KEY, key)
        for name, content in headers:
            if content is None:
                fields += (_NULL + _bytes_of(name), b"")
            else:
                fields += (_field_of(name), content)
        if not fields:  # an entry of Redis has one at least
            fields = [_VALUE, b""]
        flat.append(len(fields))
        flat += fields
    return flat


@lru_cache(maxsize=1024)
def _field_of(header: str) -> bytes:
    name = _bytes_of(header)
    escaped = name in {_VALUE, _KEY} or name.startswith((_ESCAPE, _NULL))
    return _ESCAPE + name if escaped else name


def _bytes_of(header: str) -> bytes:
    return header.encode(errors="surrogateescape")


def _header_of(field: bytes, content: bytes) -> tuple[str, bytes | None]:
    """Return the name and the value of a header that `arguments` wrote, or another program."""
    null = field.startswith(_NULL) and not content
    name = field.removeprefix(_NULL if null else _ESCAPE)
    return name.decode(errors="surrogateescape"), None if null else content


def _own_headers(letter: Outgoing) -> Headers:
    """Return a dead letter's own headers, without its source's.

    PAYLOAD_TOO_LARGE for other messages, before anything is sent: Redis does not undo the
    first half of a script.
    """
    all_headers = letter.headers
    own = tuple(header for header in all_headers if header[0].startswith(OURS))
    if not is_dead_letter(letter) or len(own) > MAX_HEADERS:
        raise MlctlError(
            ErrorCode.PAYLOAD_TOO_LARGE,
            f"a message has {len(all_headers):,} headers (limit of Redis {MAX_HEADERS:,})",
            "Send it with fewer headers.",
        )
    return (*own, (LEFT_OUT, b"%d headers" % (len(all_headers) - len(own))))


# ---- connection and producer


class RedisConnection(StreamConnection):
    """A consumer with a name of its own, under which its uncommitted entries are pending.

    Other consumers claim the entries when the server got no command from this one for `idle_s`
    seconds. The script that commits checks that the entries still belong to this consumer.
    """

    guarantee = Guarantee.EXACTLY_ONCE

    def __init__(self, request: ConnectionRequest) -> None:
        source = request.source
        self._request = request
        self._topic = source.topic
        self._db = connect(source)
        self._name = f"{scripts.PREFIX}{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._idle_ms = _idle_ms(source)
        self._field = _field(source)
        self._trims = source.options.get("trim") == "acknowledged"
        # Entries that poll() returned and no commit acknowledged.
        self._in_progress: set[int | str] = set()
        # Where to continue reading this consumer's pending entries; None if all were read.
        self._cursor: bytes | None = None
        self._next_claim = self._next_trim = 0.0
        # The entries of a commit whose reply was lost, which may have happened.
        self._unconfirmed: Sequence[int | str] = ()
        self._scripts = {
            name: self._db.register_script(getattr(scripts, name))
            for name in ("COMMIT", "CLAIM", "LEAVE", "LAG")
        }

    def __enter__(self) -> Self:
        start = "0" if self._request.start == "earliest" else "$"
        with translate_errors(self._request.source):
            try:
                self._db.xgroup_create(self._topic, self._request.group, start, mkstream=True)
            except redis.ResponseError as error:
                if "BUSYGROUP" not in str(error):
                    raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        try:
            self._run("LEAVE", (self._topic,), (self._request.group, self._name))
        except MlctlError:
            pass  # The entries are claimed once this consumer's idle time has passed.
        finally:
            self._db.close()

    @property
    def takeover_s(self) -> float:
        """The option `idle_s`."""
        return self._idle_ms / 1000

    def poll(self, limit: int, wait_s: float) -> Sequence[Message]:
        try:
            with translate_errors(self._request.source):
                found = self._poll(limit, wait_s)
        except MlctlError:
            # The reply may have been lost: then the entries are pending under this name.
            self._cursor = b"0"
            raise
        self._in_progress.update([message.offset for message in found])
        return found

    def commit(self, batch: Commit) -> None:
        if not batch.done:
            return
        request, offsets = self._request, [message.offset for message in batch.done]
        keys = (
            self._topic,
            request.answers.topic if request.answers else self._topic,
            request.dead.topic if request.dead else self._topic,
        )
        command: list[Any] = [request.group, self._name, len(offsets), *offsets]
        command += arguments(batch.answers if request.answers else ())
        command += arguments(batch.dead if request.dead else ())
        if len(command) > _MAX_ARGUMENTS:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"{len(batch.done):,} messages are too many for one step in Redis",
                "Set a smaller --max-batch.",
            )
        try:
            reply = self._run("COMMIT", keys, command)
        except MlctlError:
            self._unconfirmed = offsets
            raise
        unconfirmed, self._unconfirmed = self._unconfirmed, ()
        self._in_progress.difference_update(offsets)
        repeated = unconfirmed == offsets and reply[1:] == [0, 0]
        if reply[0] == 0 and not repeated:
            # Later batches are discarded as well; entries that are still owned are read again.
            self._in_progress.clear()
            self._cursor = b"0"
            raise LostPartitionsError

    def lag(self) -> Mapping[str, int]:
        return {self._topic: self.group_lag()}

    def group_lag(self) -> int:
        reply = self._run("LAG", (self._topic,), (self._request.group,))
        if not reply:
            raise _missing(self._request.source)
        return int(reply[0])

    def _poll(self, limit: int, wait_s: float) -> list[Message]:
        if self._trims and time.monotonic() >= self._next_trim:
            _trim(self._db, self._topic)
            self._next_trim = time.monotonic() + _TRIM_SECONDS
        if limit <= 0:
            self._read(1, None, _END)
            return []
        found = self._pending(limit) or self._claimed(limit)
        return found or self._messages(self._read(limit, wait_s, b">"))

    def _pending(self, limit: int) -> list[Message]:
        """Return entries that were read under this name and not returned since."""
        while self._cursor is not None:
            entries = self._read(limit, None, self._cursor)
            self._cursor = entries[-1][0] if entries else None
            if deleted := [entry_id for entry_id, fields in entries if fields is None]:
                self._db.xack(self._topic, self._request.group, *deleted)
            found = self._messages(entries)
            if fresh := [message for message in found if message.offset not in self._in_progress]:
                return fresh
        return []

    def _claimed(self, limit: int) -> list[Message]:
        """Return entries of dead consumers."""
        now = time.monotonic()
        if now < self._next_claim:
            return []
        command = (self._request.group, self._name, self._idle_ms, limit)
        found = self._messages(self._scripts["CLAIM"]((self._topic,), command))
        if not found:
            self._next_claim = now + self._idle_ms / 3000
            # A restarted server may have lost a commit: then its entries are pending again.
            self._cursor = b"0"
        return found

    def _read(self, limit: int, wait_s: float | None, after: bytes) -> list[Any]:
        # BLOCK 0 would wait for ever.
        block = ("BLOCK", max(1, int(wait_s * 1000))) if wait_s else ()
        reader = ("GROUP", self._request.group, self._name, "COUNT", limit, *block)
        reply = self._db.execute_command("XREADGROUP", *reader, "STREAMS", self._topic, after)
        return reply[0][1] if reply else []

    def _messages(self, entries: list[Any]) -> list[Message]:
        return read_entries(self._topic, entries, self._field)

    def _run(self, name: str, keys: Sequence[str], command: Sequence[Any]) -> Any:
        try:
            with translate_errors(self._request.source):
                return self._scripts[name](keys, command)
        except MlctlError:
            self._cursor = b"0"  # as in poll()
            raise


class RedisProducer:
    """Writes to one stream, in pages that do not block the server for long."""

    def __init__(self, url: StreamUrl) -> None:
        self._url = url
        self._db = connect(url)
        self._add = self._db.register_script(scripts.ADD)

    def publish(self, messages: Sequence[Outgoing]) -> None:
        with translate_errors(self._url):
            for at in range(0, len(messages), _PAGE):
                self._add((self._url.topic,), arguments(messages[at : at + _PAGE]))

    def __enter__(self) -> Self:
        with translate_errors(self._url):
            self._db.ping()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._db.close()


class RedisTransport(Transport):
    """The transport of `redis://` and `rediss://`."""

    def open_connection(self, request: ConnectionRequest) -> RedisConnection:
        for url in (request.answers, request.dead):
            if url is not None and url.address != request.source.address:
                raise MlctlError(
                    ErrorCode.INVALID_INPUT,
                    f"{url.redacted()} is not in the server and database of the source",
                    "One step commits to one server only.",
                )
        return RedisConnection(request)

    def open_producer(self, url: StreamUrl) -> RedisProducer:
        return RedisProducer(url)

    def browse(self, url: StreamUrl, *, last: int | None = None) -> Iterator[Message]:
        field = _field(url)
        with connect(url) as db:
            if last is not None:
                with translate_errors(url):
                    rows = db.execute_command("XREVRANGE", url.topic, "+", "-", "COUNT", last)
                yield from read_entries(url.topic, reversed(rows), field)
                return
            end, after = _last_id(db, url), b"-"
            while True:
                with translate_errors(url):
                    rows = db.execute_command("XRANGE", url.topic, after, end, "COUNT", _PAGE)
                yield from read_entries(url.topic, rows, field)
                if len(rows) < _PAGE:
                    return
                after = b"(" + rows[-1][0]

    def status(self, url: StreamUrl, group: str) -> StreamStatus:
        with translate_errors(url), connect(url) as db:
            server, persistence = db.info("server"), db.info("persistence")
            if not db.exists(url.topic):
                raise MlctlError(
                    ErrorCode.NOT_FOUND,
                    f"there is no stream {url.topic!r} in {url.redacted()}",
                    "Send it a message, or start a consumer.",
                )
            count_lag = db.register_script(scripts.LAG)
            groups, remarks = [], [_durability(persistence)]
            for each in db.xinfo_groups(url.topic):
                name = each["name"].decode()
                lag, exact = count_lag((url.topic,), (name,))
                idle_s = _idle_seconds(db, url.topic, name)
                groups.append(GroupStatus(name, int(lag), _members(db, url, name), idle_s))
                if not exact:
                    remarks.append(f"group {name!r}: at least {lag:,} messages, not all counted")
            lags = [each.lag or 0 for each in groups if each.name == group]
            return StreamStatus(
                Guarantee.EXACTLY_ONCE,
                f"Redis {server['redis_version']}",
                int(db.xlen(url.topic)),
                {url.topic: lags[0]} if lags else None,
                tuple(groups),
                tuple(remarks),
            )

    def forget_group(self, url: StreamUrl, group: str) -> None:
        with translate_errors(url), connect(url) as db:
            known = db.exists(url.topic) and {each["name"] for each in db.xinfo_groups(url.topic)}
            if not known or group.encode() not in known:
                raise no_group(group)
            if _members(db, url, group):
                raise group_in_use(group)
            db.xgroup_destroy(url.topic, group)
            db.hdel(_activity_key(url.topic), group)


transport = RedisTransport()


def _members(db: Any, url: StreamUrl, group: str) -> int:
    """Return the number of consumers that are neither dead nor have left."""
    return sum(
        each["idle"] < _idle_ms(url) and each["name"].decode() != scripts.LEFT
        for each in db.xinfo_consumers(url.topic, group)
    )


def _idle_seconds(db: Any, topic: str, group: str) -> float | None:
    """Return the seconds since a consumer of the group was last active; None without any."""
    idle = [each["idle"] for each in db.xinfo_consumers(topic, group)]
    return min(idle) / 1000 if idle else None


def _trim(db: Any, topic: str) -> None:
    """Remove the entries that all groups committed, but for abandoned ones.

    A hash says when each group was last active: a group without consumers does not.
    """
    now, needed = time.time(), []
    for group in db.xinfo_groups(topic):
        name = group["name"].decode()
        idle = _idle_seconds(db, topic, name)
        saved = float(db.hget(_activity_key(topic), name) or now)
        active = saved if idle is None else max(saved, now - idle)
        db.hset(_activity_key(topic), name, int(active))
        if now - active < ABANDONED_SECONDS:
            pending = db.xpending(topic, name)["min"]
            needed += [each for each in (group["last-delivered-id"], pending) if each]
    if needed:
        first = min(needed, key=lambda entry_id: tuple(map(int, entry_id.split(b"-"))))
        db.xtrim(topic, minid=first, approximate=False)


def _activity_key(topic: str) -> str:
    """Return the key of the hash that says when each group was last active."""
    return f"{topic}:mlctl:active"


def _idle_ms(url: StreamUrl) -> int:
    """Return the milliseconds without a command after which a consumer is replaced."""
    return max(1, int(url.number("idle_s", _IDLE_SECONDS) * 1000))


def _field(url: StreamUrl) -> bytes:
    return url.options.get("field", "").encode() or _VALUE


def _last_id(db: Any, url: StreamUrl) -> bytes:
    with translate_errors(url):
        rows = db.execute_command("XREVRANGE", url.topic, "+", "-", "COUNT", 1)
    return bytes(rows[0][0]) if rows else b"0-0"


def _durability(persistence: dict[str, Any]) -> str:
    if persistence.get("aof_enabled"):
        return "append-only file: a crash loses what the server's appendfsync setting allows"
    return "no append-only file: a crash loses everything after the last snapshot"
