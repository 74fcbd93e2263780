"""Addresses and ports to listen on: pick free ones, resolve a host, check that one is free."""

from __future__ import annotations

import os
import random
import socket
from collections import deque
from contextlib import ExitStack, suppress

from mlctl.core.errors import ErrorCode, MlctlError

# Below the range that the kernel assigns to outgoing connections, which could otherwise take a
# port while its server still loads.
_CANDIDATES = range(20_000, 32_768)
_MAX_TRIES = 1000

# The file descriptors that hold the newest picks of this process.
_held: deque[int] = deque()
_MAX_HELD = 64


def free_ports(count: int) -> tuple[int, ...]:
    """Return `count` distinct loopback ports that nothing listens on; PORT_TAKEN if too few.

    No other call, of this process or another, returns them before their servers listen: a pick
    holds the UDP port of the same number, which no server here uses, until the process ends or
    has picked 64 more.
    """
    found: list[int] = []
    for port in random.SystemRandom().sample(_CANDIDATES, _MAX_TRIES):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            _hold(port)
            found.append(port)
        if len(found) == count:
            return tuple(found)
    raise MlctlError(ErrorCode.PORT_TAKEN, f"fewer than {count} free ports on 127.0.0.1")


def _hold(port: int) -> None:
    """Bind the UDP port of `port`; OSError if another pick holds it."""
    with socket.socket(type=socket.SOCK_DGRAM) as holder:
        holder.bind(("127.0.0.1", port))
        _held.append(holder.detach())
    if len(_held) > _MAX_HELD:
        os.close(_held.popleft())


def resolve_host(host: str) -> str:
    """Return an IP address of `host`, IPv4 first, because Envoy takes no names; INVALID_INPUT."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"the host {host!r} has no address here",
            "Give an address of this machine, for example 127.0.0.1.",
        ) from error
    ordered = sorted(found, key=lambda entry: entry[0] is not socket.AF_INET)
    return str(ordered[0][4][0])


def require_free(host: str, *ports: int) -> None:
    """Raise PORT_TAKEN, naming the first of `ports` that cannot be bound at the address `host`."""
    require_all_free(*((host, port) for port in ports))


def require_all_free(*addresses: tuple[str, int]) -> None:
    """Raise PORT_TAKEN, naming the first (address, port) that cannot be bound; none may repeat."""
    with ExitStack() as stack:
        for host, port in addresses:
            shown = f"[{host}]" if ":" in host else host
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            probe = stack.enter_context(socket.socket(family))
            # Without this option a port in TIME_WAIT seems taken.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
                probe.listen()
            except OSError as error:
                raise MlctlError(
                    ErrorCode.PORT_TAKEN, f"cannot listen on {shown}:{port}: {error.strerror}"
                ) from error
