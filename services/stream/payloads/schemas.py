"""Schemas of a schema registry, through Confluent's client.

While the registry does not answer, the run waits: no message becomes a dead letter because of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError
from httpx2 import TransportError

from bundle.clock import Clock, SystemClock
from bundle.errors import ErrorCode, MlctlError
from services.protocol.wire import invalid

_T = TypeVar("_T")
AUTH_VARIABLE = "MLCTL_SCHEMA_REGISTRY_AUTH"
_TIMEOUT_SECONDS = 10
# Seconds before a missing schema is requested again: it may be registered at any moment.
_ABSENT_SECONDS = 10.0
_DEEPEST = 16


class SchemaRegistry:
    """The registry at `url`. MLCTL_SCHEMA_REGISTRY_AUTH may hold USER:PASSWORD for it."""

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        # The run itself tries again, and can be stopped meanwhile.
        settings: dict[str, object] = {"url": url, "timeout": _TIMEOUT_SECONDS, "max.retries": 0}
        if credentials := os.environ.get(AUTH_VARIABLE):
            settings["basic.auth.user.info"] = credentials
        self._clock = clock or SystemClock()
        try:
            self._client = SchemaRegistryClient(settings)
        except ValueError:
            # The library's message may contain the password.
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                "the schema registry's address or credentials are not valid",
                f"Write --option registry=http://HOST:8081 and {AUTH_VARIABLE}=USER:PASSWORD.",
            ) from None
        self._absent: dict[int, float] = {}

    def schema(self, number: int) -> Schema:
        """Return the schema `number`, from a cache; INVALID_INPUT if it does not exist."""
        if self._absent.get(number, 0.0) <= self._clock.monotonic():
            found = _request(lambda: self._client.get_schema(number))
            if found is not None:
                return found
            self._absent[number] = self._clock.monotonic() + _ABSENT_SECONDS
        raise invalid(f"the schema registry has no schema {number}")

    def referenced(self, schema: Schema, depth: int = 0) -> list[str]:
        """Return the texts of the schemas that `schema` refers to, after its own references."""
        if depth > _DEEPEST:
            raise invalid("schemas refer to each other in a cycle")
        texts: list[str] = []
        for reference in schema.references or ():
            subject, version = str(reference.subject), int(reference.version or 0)
            found = _request(lambda s=subject, v=version: self._client.get_version(s, v))  # type: ignore[misc]
            if found is None:
                raise invalid("a schema refers to one that the schema registry does not have")
            texts += [*self.referenced(found.schema, depth + 1), str(found.schema.schema_str)]
        return list(dict.fromkeys(texts))

    def register(self, subject: str, schema: str) -> int:
        """Register an Avro schema under `subject`; return its number, the same each time."""
        found = _request(lambda: self._client.register_schema(subject, Schema(schema, "AVRO")))
        if found is None:
            raise _rejected(404)
        return found


def _request(send: Callable[[], _T]) -> _T | None:
    """Return the registry's answer; None for 404."""
    try:
        return send()
    except TransportError as error:
        raise _unavailable("did not answer") from error
    except SchemaRegistryError as error:
        status = error.http_status_code
        if status == 404:
            return None
        if status >= 500 or status in (408, 429):
            raise _unavailable(f"answered with HTTP {status}") from error
        raise _rejected(status) from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _unavailable("sent a reply that is not a schema") from error


def _unavailable(problem: str) -> MlctlError:
    return MlctlError(ErrorCode.BROKER_UNAVAILABLE, f"the schema registry {problem}")


def _rejected(status: int) -> MlctlError:
    """An error that no message can cause."""
    denied = status in (401, 403)
    return MlctlError(
        ErrorCode.UNAUTHENTICATED if denied else ErrorCode.REGISTRY_UNAVAILABLE,
        f"the schema registry rejected a request with HTTP {status}",
        f"Check --option registry and the credentials in {AUTH_VARIABLE}.",
    )
