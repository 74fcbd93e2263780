"""Connections to a Redis server: from a place and the environment, and what its errors mean."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from bundle.errors import ErrorCode, MlctlError
from services.stream.base import StreamUrl
from services.stream.transports.tls import client_context, unavailable

_SECONDS = 10.0
# What the client's own library takes; the rest of a place's options are ours.
_CLIENT_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname")
_OPTIONS = (*_CLIENT_OPTIONS, "consumer", "idle_s", "field", "trim")
# Whatever passes by itself, also where it happened inside a script.
_PASSING = ("OOM", "LOADING", "READONLY", "NOREPLICAS", "MASTERDOWN", "MISCONF", "BUSY", "TRYAGAIN")


def connect(place: StreamUrl) -> Any:
    """A client of the server of `place`, which connects when it is first used.

    It has one connection, and it never repeats a command by itself: whether a step that was cut
    off may be repeated is for us to know.
    """
    unknown = sorted(set(place.options) - set(_OPTIONS))
    if unknown:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"a place in Redis has no option {unknown[0]!r}",
            f"Known are: {', '.join(_OPTIONS)}.",
        )
    if not place.topic:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            "the place has no stream",
            "Name the stream after a #, as in redis://localhost:6379/0#orders.",
        )
    query = urlencode(_of_tls(place))
    try:
        client: Any = redis.Redis.from_url(
            f"{place.scheme}://{place.address}{'?' if query else ''}{query}",
            single_connection_client=False,
            max_connections=1,
            protocol=2,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=_SECONDS,
            socket_connect_timeout=_SECONDS,
            socket_keepalive=True,
            **_credentials(),
        )
    except ValueError:
        # The library's words may hold the password.
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{place.shown()} is not the address of a Redis server",
            "Write it as redis://localhost:6379/0#orders.",
        ) from None
    # Entries as they are: the library's dictionaries forget fields that occur twice.
    for command in ("XREADGROUP", "XREAD", "XRANGE", "XREVRANGE"):
        client.set_response_callback(command, lambda reply, **_: reply)
    return client


def _of_tls(place: StreamUrl) -> dict[str, str]:
    """The options of `place` for TLS; INVALID_INPUT if it has none, or their files are no use."""
    given = {name: place.options[name] for name in _CLIENT_OPTIONS if name in place.options}
    if given and place.scheme != "rediss":
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{place.shown()} has no TLS, and so no {next(iter(given))}",
            "Write it as rediss://HOST:PORT/DATABASE#STREAM.",
        )
    if given:
        # The library would say later, and each time anew, what is wrong with a file.
        client_context(given, "ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
    return given


def _credentials() -> dict[str, Any]:
    """The user and the password of the environment."""
    names = ("username", "MLCTL_REDIS_USERNAME"), ("password", "MLCTL_REDIS_PASSWORD")
    return {name: os.environ[given] for name, given in names if os.environ.get(given)}


@contextmanager
def translate_errors(place: StreamUrl) -> Iterator[None]:
    """The library's errors as ours: BROKER_UNAVAILABLE is all that another try may mend."""
    try:
        yield
    except redis.AuthenticationError as error:
        raise MlctlError(
            ErrorCode.UNAUTHENTICATED,
            f"{place.shown()} does not accept the user or the password",
            "Give them in the place or as MLCTL_REDIS_USERNAME and MLCTL_REDIS_PASSWORD.",
        ) from error
    except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
        raise unavailable(place, error) from error
    except redis.RedisError as error:
        raise _meant(place, f"{type(error).__name__} {error}") from error


def missing(place: StreamUrl) -> MlctlError:
    """NOT_FOUND for a stream or a group that someone deleted."""
    return MlctlError(
        ErrorCode.NOT_FOUND,
        f"{place.shown()} or its group does not exist",
        "If it was deleted while a stream ran, start that run again: it begins as a new group.",
    )


def _meant(place: StreamUrl, text: str) -> MlctlError:
    if any(word in text for word in _PASSING) or "OutOfMemory" in text or "ReadOnly" in text:
        return MlctlError(
            ErrorCode.BROKER_UNAVAILABLE, f"{place.shown()} takes nothing now: {text}"
        )
    if "NOGROUP" in text or "no such key" in text:
        return missing(place)
    if "NoPermission" in text or "NOPERM" in text:
        return MlctlError(ErrorCode.NOT_PERMITTED, f"{place.shown()}: {text}")
    if "WRONGTYPE" in text:
        return MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{place.shown()}: one of the keys is no stream",
            "Name a stream, or a key that is not there yet.",
        )
    return MlctlError(ErrorCode.INTERNAL, f"{place.shown()}: {text}")
