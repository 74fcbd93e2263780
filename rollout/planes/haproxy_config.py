"""HAProxy's configuration as text; no I/O here.

The frontend throws the dice and compares them with a map, which the socket changes while it
runs: one entry is the whole weight, so no request ever finds both colours at 0. Each colour has
a backend per protocol in which the other colour's servers stand by, and one for its testers.
Servers are slots that get their addresses at run time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from rollout.model import MAX_REPLICAS, Colour, Endpoint, Ports
from rollout.planes.edge import ALPN, CIPHER_NAMES
from rollout.planes.marks import (
    CLIENT_COOKIE,
    CLIENT_HEADER,
    REQUEST_ID_HEADER,
    TESTER_COOKIE,
    TESTER_HEADER,
    TESTER_VALUE,
)
from rollout.ports import Traffic

PROTOCOLS = ("http", "grpc")
SLOTS = MAX_REPLICAS
RING = "answers"
# What each answer is told as; `haproxy_counts` reads it.
LOG_FORMAT = "mlctl %b %s %ST %Ta %TR %ts %rc %[var(txn.grpc)] %[var(txn.stream)]"
# The ends of the paths whose answers come in pieces.
_STREAMS = (
    "/infer_stream",
    "/generate_stream",
    "/ModelStreamInfer",
    "/Watch",
    "/ServerReflectionInfo",
)
# Over HTTP/2 a server is connected when it has spoken, which the activator does not before the
# replica that it wakes.
_PATIENT = ("    timeout connect 60s",)
# As numbers, because a map holds values of one type.
_NOBODY = 0
_TESTED = {colour: number for number, colour in enumerate(Colour, start=1)}

Slots = tuple[Endpoint | None, ...]


def backend(colour: Colour, protocol: str) -> str:
    """The backend that a share of the users is sent to."""
    return f"{colour}-{protocol}"


def server(colour: Colour, slot: int) -> str:
    """The name of a slot's server; the same in every backend."""
    return f"{colour}{slot + 1}"


def traffic_entries(traffic: Traffic) -> dict[str, str]:
    """The map that the frontend asks, whole."""
    return {
        Colour.GREEN: str(traffic.weights[Colour.GREEN]),
        "sticky": str(int(traffic.sticky)),
        "testers": str(_NOBODY if traffic.testers is None else _TESTED[traffic.testers]),
    }


def parse_entries(entries: Mapping[str, str]) -> Traffic | None:
    """The inverse of `traffic_entries`; None for a map that is not ours."""
    if not entries.keys() >= {Colour.GREEN, "sticky", "testers"}:
        return None
    green, testers = int(entries[Colour.GREEN]), int(entries["testers"])
    return Traffic(
        {Colour.GREEN: green, Colour.BLUE: 100 - green},
        testers=next((colour for colour, n in _TESTED.items() if n == testers), None),
        sticky=entries["sticky"] == "1",
    )


def configuration(bind: str, socket: Path, traffic_map: Path, slots: Mapping[Colour, Slots]) -> str:
    """The whole file. `bind` is where and how it listens, `socket` where it is steered,
    `traffic_map` the file of the map.
    """
    sections = [_head(socket), _frontend(bind, traffic_map)]
    for protocol in PROTOCOLS:
        for colour in Colour:
            own = _servers(colour, protocol, slots[colour])
            covers = _trackers(colour.other, protocol, slots[colour.other])
            standby = (f"{line} backup" for line in covers)
            sections.append(_backend(backend(colour, protocol), protocol, [*own, *standby]))
            testers = _trackers(colour, protocol, slots[colour])
            sections.append(_backend(_tester_backend(colour, protocol), protocol, [*testers]))
    return "\n".join(sections)


def placements(colour: Colour, protocol: str) -> tuple[str, ...]:
    """Every backend that has the servers of `colour`; the first is the one that checks them."""
    return (
        backend(colour, protocol),
        backend(colour.other, protocol),
        _tester_backend(colour, protocol),
    )


def _head(socket: Path) -> str:
    return f"""\
global
    stats socket "{socket}" mode 600 level admin
    stats timeout 1d
    nbthread 1

ring {RING}
    format raw
    maxlen 512
    size 8388608

defaults
    mode http
    option redispatch 1
    retries 2
    # Only failures before the request reached a server: a prediction may not be idempotent.
    retry-on conn-failure
    timeout connect 1s
    timeout client 5m
    timeout http-request 30s
    timeout http-keep-alive 1h
    timeout server 60s
    timeout queue 10s
    timeout check 2s
    option forwardfor
    option httpchk
    http-check send meth GET uri /v2/health/ready
    http-check expect status 200
    # A refused connection takes a server out at once; the next good check brings it back.
    default-server inter 500ms fall 3 rise 1 observe layer4 error-limit 1 on-error mark-down
"""


def _frontend(bind: str, traffic_map: Path) -> str:
    asked = f'map_str_int("{traffic_map}",0)'
    testers = "\n".join(
        f"    use_backend {colour}-tester-%[var(txn.protocol)] if marked {{ {_tested(number)} }}"
        for colour, number in _TESTED.items()
    )
    return f"""\
frontend ingress
    bind {bind}
    log ring@{RING} format raw local0
    log-format "{LOG_FORMAT}"
    acl is_grpc req.hdr(content-type) -m beg application/grpc
    acl marked req.hdr({TESTER_HEADER}) -m str {TESTER_VALUE}
    acl marked req.cook({TESTER_COOKIE}) -m str {TESTER_VALUE}
    acl sticky var(txn.sticky) -m int 1
    acl named req.hdr({CLIENT_HEADER}) -m found
    acl known req.cook({CLIENT_COOKIE}) -m found
    http-request set-header {REQUEST_ID_HEADER} %[uuid()] \
unless {{ req.hdr({REQUEST_ID_HEADER}) -m found }}
    http-request set-var(txn.id) req.hdr({REQUEST_ID_HEADER})
    http-request set-var(txn.protocol) str(http)
    http-request set-var(txn.protocol) str(grpc) if is_grpc
    http-request set-var(txn.stream) bool(true) if {{ path_end {" ".join(_STREAMS)} }}
    http-request set-var(txn.testers) str(testers),{asked}
    http-request set-var(txn.sticky) str(sticky),{asked}
    http-request set-var(txn.green) str(green),{asked}
    http-request set-var(txn.pick) rand(100)
    # The hash takes the place of the dice: who was on a colour stays while it grows.
    http-request set-var(txn.client) var(txn.id)
    http-request set-var(txn.client) req.cook({CLIENT_COOKIE}) if known
    http-request set-var(txn.client) req.hdr({CLIENT_HEADER}) if named
    http-request set-var(txn.new) bool(true) if sticky !named !known !is_grpc
    http-request set-var(txn.pick) var(txn.client),xxh32,mod(100) if sticky
    http-request set-var(txn.colour) str(blue)
    http-request set-var(txn.colour) str(green) if {{ var(txn.pick),sub(txn.green) lt 0 }}
    http-response set-var(txn.grpc) res.hdr(grpc-status)
    http-after-response set-header {REQUEST_ID_HEADER} %[var(txn.id)] \
if {{ var(txn.id) -m found }}
    http-after-response add-header set-cookie \
"{CLIENT_COOKIE}=%[var(txn.id)]; Path=/; HttpOnly" if {{ var(txn.new) -m bool }}
{testers}
    use_backend %[var(txn.colour)]-%[var(txn.protocol)]
"""


def _tested(number: int) -> str:
    return f"var(txn.testers) -m int {number}"


def listening(ports: Ports) -> str:
    """Where callers are taken."""
    # An address with colons and no brackets would be read as one with a port.
    host = f"ipv6@[{ports.host}]" if ":" in ports.host else ports.host
    return f"{host}:{ports.listen}"


def security(pair: Path, callers: Path | None) -> str:
    """What makes them callers over TLS: the file of the certificate and its key, and their CA."""
    mutual = "" if callers is None else f' ca-file "{callers}" verify required'
    ciphers, alpn = ":".join(CIPHER_NAMES), ",".join(ALPN)
    return f' ssl crt "{pair}" ssl-min-ver TLSv1.2 ciphers {ciphers} alpn {alpn}{mutual}'


def _backend(name: str, protocol: str, servers: list[str]) -> str:
    lines = [
        f"backend {name}",
        "    balance leastconn",
        "    option allbackups",
        *(_PATIENT if protocol == "grpc" else ()),
        # Over gRPC nothing comes for as long as a piece takes to be made.
        "    http-request set-timeout server 5m if { var(txn.stream) -m bool }",
        *servers,
    ]
    return "\n".join(lines) + "\n"


def _tester_backend(colour: Colour, protocol: str) -> str:
    return f"{colour}-tester-{protocol}"


def _servers(colour: Colour, protocol: str, slots: Slots) -> Iterator[str]:
    for slot, endpoint in enumerate(slots):
        # Health is always asked of the HTTP port, where the server answers for both.
        health = f"check check-proto h1 port {endpoint.http if endpoint else 1}"
        rest = f"{health} {'' if endpoint else 'disabled'}"
        yield f"    server {server(colour, slot)} {_where(endpoint, protocol)} {rest}".rstrip()


def _trackers(colour: Colour, protocol: str, slots: Slots) -> Iterator[str]:
    """The same servers in another backend, healthy while they are in their own."""
    for slot, endpoint in enumerate(slots):
        name = server(colour, slot)
        tracked = f"{backend(colour, protocol)}/{name}"
        yield f"    server {name} {_where(endpoint, protocol)} track {tracked}"


def _where(endpoint: Endpoint | None, protocol: str) -> str:
    port = 1 if endpoint is None else port_of(endpoint, protocol)
    return f"127.0.0.1:{port}{' proto h2' if protocol == 'grpc' else ''}"


def port_of(endpoint: Endpoint, protocol: str) -> int:
    """Where the process listens for `protocol`."""
    return endpoint.grpc if protocol == "grpc" else endpoint.http
