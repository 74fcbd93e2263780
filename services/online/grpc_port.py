"""The gRPC port that the workers of one server share."""

from __future__ import annotations

import socket

from mlctl.core.errors import ErrorCode, MlctlError


def reserve_port(host: str, port: int) -> socket.socket:
    """Return a socket that reserves `port` for this user's processes that set SO_REUSEPORT.

    It never listens, so it gets no connection. PORT_TAKEN if the port is in use.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:  # without SO_REUSEPORT: exclusive
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
        held = socket.socket(family, kind)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(address)
    except OSError as error:
        raise port_taken(host, port) from error
    return held


def port_taken(host: str, port: int) -> MlctlError:
    """Return the error for a gRPC port that is already in use."""
    return MlctlError(
        ErrorCode.PORT_TAKEN,
        f"gRPC cannot listen on {host}:{port}",
        "Set MLCTL_GRPC_PORT to a free port.",
    )
