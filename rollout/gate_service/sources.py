"""The servers that the gate service may read. They are named when it starts, never later."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.tokens import authorization
from mlctl.rollout.domain.interfaces import DataPlaneUnavailable
from mlctl.rollout.drivers.kubernetes.meter import PodCounts, Scrape, totals_of

_TIMEOUT = 2.0
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")
_HINT = "Give NAME=http://HOST:PORT/metrics, or NAME=service:NAMESPACE/SERVICE."


@dataclass(frozen=True, slots=True)
class ServiceName:
    """A Service in a cluster, whose pods the API server names."""

    namespace: str
    service: str


def parse_sources(entries: tuple[str, ...]) -> dict[str, tuple[str, ...] | ServiceName]:
    """What "NAME=WHAT" entries allow: addresses, or a Service. INVALID_INPUT.

    Several addresses under one name are counted together.
    """
    found: dict[str, tuple[str, ...] | ServiceName] = {}
    for entry in entries:
        name, equals, location = entry.partition("=")
        if not equals or not _NAME.fullmatch(name):
            raise _invalid(f"{entry!r} names no source")
        parsed = _parsed(entry, location)
        before = found.get(name)
        if isinstance(before, tuple) and isinstance(parsed, tuple):
            found[name] = (*before, *parsed)
        elif before is not None:
            raise _invalid(f"the source {name!r} is given twice")
        else:
            found[name] = parsed
    if len(found) < 2:
        raise _invalid("a gate compares two sources")
    return found


def _parsed(entry: str, location: str) -> tuple[str, ...] | ServiceName:
    if location.startswith("service:"):
        namespace, slash, service = location.removeprefix("service:").partition("/")
        if not (namespace and slash and service):
            raise _invalid(f"{entry!r} names no Service")
        return ServiceName(namespace, service)
    try:
        parts = urlsplit(location)
        plain = parts.username is None and (parts.port is None or parts.port > 0)
        valid = parts.scheme in ("http", "https") and parts.hostname and plain
    except ValueError:
        valid = False
    if not valid:
        raise _invalid(f"{entry!r} is no address of metrics")
    return (location,)


class UrlSource(PodCounts):
    """Servers at fixed addresses. A name with several addresses, as a headless Service has, is
    every one of them.
    """

    def __init__(self, urls: tuple[str, ...]) -> None:
        self._urls = urls
        self._client = httpx.Client(timeout=_TIMEOUT, trust_env=False)

    def scrape(self) -> Scrape:
        servers = frozenset(each for url in self._urls for each in _addresses(url))
        answers = {server: self._get(*server) for server in servers}
        texts = {f"{url}@{address}": t for (url, address), t in answers.items() if t is not None}
        present = frozenset(f"{url}@{address}" for url, address in servers)
        return Scrape(present, present, totals_of(texts))

    def _get(self, url: str, address: str) -> str | None:
        parts = urlsplit(url)
        headers = {**authorization(), "host": parts.netloc.rpartition("@")[2]}
        if parts.scheme == "http":  # with TLS the name is what is certified
            host = f"[{address}]" if ":" in address else address
            url = parts._replace(netloc=f"{host}:{parts.port or 80}").geturl()
        try:
            answer = self._client.get(url, headers=headers)
        except (httpx.HTTPError, UnicodeError):
            return None
        return answer.text if answer.status_code == httpx.codes.OK else None


def _addresses(url: str) -> set[tuple[str, str]]:
    parts = urlsplit(url)
    if parts.scheme != "http":
        return {(url, "")}
    try:
        found = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_STREAM)
    except OSError as error:
        raise DataPlaneUnavailable("a source's name has no address") from error
    # Of one family: a server that listens on both must not be counted twice.
    family = min((entry[0] for entry in found), key=lambda each: each is not socket.AF_INET)
    return {(url, str(entry[4][0])) for entry in found if entry[0] is family}


def _invalid(message: str) -> MlctlError:
    return MlctlError(ErrorCode.INVALID_INPUT, message, _HINT)
