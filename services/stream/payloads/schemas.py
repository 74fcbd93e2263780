"""A schema registry, asked once for each schema: by the HTTP API that Confluent documented.

One that does not answer is worth another try: no message is at fault because of it.
"""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import quote

from bundle.clock import Clock, SystemClock
from bundle.errors import ErrorCode, MlctlError
from services.v2.wire import invalid

AUTH_VARIABLE = "MLCTL_SCHEMA_REGISTRY_AUTH"
_TIMEOUT_SECONDS = 10.0
# A schema that is not there may be registered any moment; that it is not is kept for so long.
_ABSENT_SECONDS = 10.0
_DEEPEST = 16


class SchemaRegistry:
    """The registry at `url`. MLCTL_SCHEMA_REGISTRY_AUTH may hold USER:PASSWORD for it."""

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        import httpx

        user, _, password = os.environ.get(AUTH_VARIABLE, "").partition(":")
        auth = (user, password) if user else None
        self._clock = clock or SystemClock()
        self._http = httpx.Client(base_url=url, auth=auth, timeout=_TIMEOUT_SECONDS)
        self._known: dict[int, dict[str, Any]] = {}
        self._absent: dict[int, float] = {}

    def schema(self, number: int) -> dict[str, Any]:
        """What was registered as `number`; INVALID_INPUT if nothing was."""
        known = self._known.get(number)
        if known is not None:
            return known
        if self._absent.get(number, 0.0) <= self._clock.monotonic():
            found = self._ask("GET", f"/schemas/ids/{number}")
            if found is not None:
                self._known[number] = found
                return found
            self._absent[number] = self._clock.monotonic() + _ABSENT_SECONDS
        raise invalid(f"the schema registry has no schema {number}")

    def referenced(self, schema: dict[str, Any], depth: int = 0) -> list[str]:
        """The texts of the schemas that `schema` refers to, each after those it needs itself."""
        if depth > _DEEPEST:
            raise invalid("schemas refer to each other without an end")
        texts: list[str] = []
        for reference in schema.get("references", ()):
            subject, version = quote(str(reference["subject"]), safe=""), reference["version"]
            found = self._ask("GET", f"/subjects/{subject}/versions/{version}")
            if found is None:
                raise invalid("a schema refers to one that the schema registry does not have")
            texts += [*self.referenced(found, depth + 1), str(found["schema"])]
        return list(dict.fromkeys(texts))

    def register(self, subject: str, schema: str) -> int:
        """The number of an Avro schema under `subject`, the same each time."""
        path = f"/subjects/{quote(subject, safe='')}/versions"
        found = self._ask("POST", path, {"schema": schema})
        if found is None:
            raise _refused(404)
        return int(found["id"])

    def _ask(self, method: str, path: str, body: object = None) -> dict[str, Any] | None:
        """The document; None if there is none."""
        import httpx

        try:
            answer = self._http.request(method, path, json=body)
        except httpx.TransportError as error:
            raise _away("did not answer") from error
        if answer.status_code == 404 and method == "GET":
            return None
        if answer.status_code >= 500 or answer.status_code in (408, 429):
            raise _away(f"answered with HTTP {answer.status_code}")
        if answer.status_code >= 300:
            raise _refused(answer.status_code)
        try:
            found = answer.json()
        except ValueError as error:
            raise _away("answered with something that is no JSON") from error
        if not isinstance(found, dict):
            raise _away("answered with something that is no schema")
        return found


def _away(what: str) -> MlctlError:
    return MlctlError(ErrorCode.BROKER_UNAVAILABLE, f"the schema registry {what}")


def _refused(status: int) -> MlctlError:
    """Nothing that a message could be blamed for."""
    denied = status in (401, 403)
    return MlctlError(
        ErrorCode.UNAUTHENTICATED if denied else ErrorCode.REGISTRY_UNAVAILABLE,
        f"the schema registry refused a request with HTTP {status}",
        f"Check --option registry and the credentials in {AUTH_VARIABLE}.",
    )
