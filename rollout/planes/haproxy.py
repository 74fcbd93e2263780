"""HAProxy as the data plane and meter of one deployment; leaner than Envoy, without copies.

Files carry what is wanted, so that a restarted HAProxy begins with it; a running one is told
over its socket, which only its own user can open.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self

from bundle.errors import ErrorCode, MlctlError
from bundle.files import write_atomic
from bundle.tls import TlsFiles
from rollout.judging.counts import Reading
from rollout.model import Colour, Endpoint, Ports
from rollout.planes import haproxy_config as config
from rollout.planes.haproxy_counts import LostAnswersError, Tallies, parse_ports, parse_servers
from rollout.planes.haproxy_socket import Stream, ask
from rollout.ports import PlaneRejected, PlaneUnavailable, Traffic

# The kernel takes 107 bytes; HAProxy needs some more for a name while it starts.
_LONGEST_SOCKET = 90


class HaproxyFiles:
    """The configuration files of one deployment under `directory`."""

    def __init__(self, directory: Path, ports: Ports, tls: TlsFiles | None = None) -> None:
        self._tls = tls
        self._directory = directory / "haproxy"
        self._configuration = self._directory / "haproxy.cfg"
        self._endpoints = self._directory / "endpoints.json"
        self._ports = ports
        self.traffic_map = self._directory / "traffic.map"
        self.socket = self._directory / "admin.sock"

    def command(self) -> list[str]:
        path = shutil.which("haproxy")
        if path is None:
            raise MlctlError(
                ErrorCode.RUNTIME_MISSING,
                "HAProxy is not installed",
                "Install the system's package haproxy (2.6 or newer), or take --proxy envoy.",
            )
        if len(str(self.socket).encode()) > _LONGEST_SOCKET:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"the path of HAProxy's socket is longer than {_LONGEST_SOCKET} bytes",
                "Set MLCTL_HOME to a shorter path, or take --proxy envoy.",
            )
        return [path, "-db", "-f", str(self._configuration)]

    def plane(self) -> HaproxyPlane:
        return HaproxyPlane(self)

    def prepare(self, live: Colour) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self.traffic_map.exists():
            self.share(Traffic({live: 100, live.other: 0}))
        bind = config.listening(self._ports)
        if self._tls is not None:
            bind += config.security(*self._copies(self._tls))
        text = config.configuration(bind, self.socket, self.traffic_map, self.slots())
        write_atomic(self._configuration, text.encode(), mode=0o600)

    def _copies(self, tls: TlsFiles) -> tuple[Path, Path | None]:
        """The certificate and its key in one file, as HAProxy takes them, and the callers' CA."""
        pair, callers = self._directory / "certificate.pem", self._directory / "callers.pem"
        write_atomic(pair, tls.cert.read_bytes() + b"\n" + tls.key.read_bytes(), mode=0o600)
        if tls.client_ca is None:
            return pair, None
        write_atomic(callers, tls.client_ca.read_bytes(), mode=0o600)
        return pair, callers

    def reset(self) -> None:
        if self._directory.exists():
            shutil.rmtree(self._directory)

    def share(self, traffic: Traffic) -> None:
        """Write the traffic with which HAProxy starts."""
        entries = config.traffic_entries(traffic).items()
        text = "".join(f"{key} {value}\n" for key, value in entries)
        _write(self.traffic_map, text)

    def slots(self) -> dict[Colour, config.Slots]:
        """The endpoints with which HAProxy starts, each in its slot."""
        found: Mapping[str, list[list[int] | None]] = {}
        if self._endpoints.exists():
            found = json.loads(self._endpoints.read_bytes())
        empty: list[list[int] | None] = [None] * config.SLOTS
        return {
            colour: tuple(Endpoint(*ports) if ports else None for ports in found.get(colour, empty))
            for colour in Colour
        }

    def place(self, colour: Colour, endpoints: tuple[Endpoint, ...]) -> config.Slots:
        """Give each endpoint a slot and write them; PlaneRejected if there are too few."""
        if len(endpoints) > config.SLOTS:
            raise PlaneRejected(f"HAProxy is set up for {config.SLOTS} replicas of a colour")
        slots = self.slots()
        slots[colour] = _placed(slots[colour], endpoints)
        document = {
            each: [[one.http, one.grpc] if one else None for one in found]
            for each, found in slots.items()
        }
        _write(self._endpoints, json.dumps(document))
        return slots[colour]


class HaproxyPlane:
    """The data plane and meter behind one running HAProxy."""

    def __init__(self, files: HaproxyFiles) -> None:
        self._files = files
        self._stream = Stream(files.socket)
        self._tallies = Tallies()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    @property
    def can_mirror(self) -> bool:
        return False

    def apply(self, traffic: Traffic) -> None:
        """Write the traffic and tell it to HAProxy.

        The file is written in any case: it holds once HAProxy is back.
        """
        if traffic.mirror:
            raise PlaneRejected("HAProxy cannot copy requests; a shadow phase needs Envoy")
        self._files.share(traffic)
        wanted = Traffic(traffic.weights, testers=traffic.testers, sticky=traffic.sticky)
        if self.traffic() == wanted:
            return
        entries = config.traffic_entries(traffic).items()
        path = self._files.traffic_map
        told = ask(self._files.socket, *(f"set map {path} {k} {v}" for k, v in entries))
        if self.traffic() != wanted:
            raise PlaneRejected(f"HAProxy refused the weights: {told.strip()}")

    def connect(self, colour: Colour, endpoints: tuple[Endpoint, ...]) -> None:
        slots = self._files.place(colour, endpoints)
        commands = [
            command
            for protocol in config.PROTOCOLS
            for slot, (endpoint, port) in enumerate(
                zip(slots, self._held(colour, protocol), strict=True)
            )
            if port != (config.port_of(endpoint, protocol) if endpoint else None)
            for command in _moves(colour, protocol, slot, endpoint)
        ]
        if commands:
            ask(self._files.socket, *commands)

    def weights(self) -> dict[Colour, int] | None:
        traffic = self.traffic()
        return None if traffic is None else dict(traffic.weights)

    def traffic(self) -> Traffic | None:
        """What is in force; None if HAProxy has another map."""
        text = ask(self._files.socket, f"show map {self._files.traffic_map}")
        words = (line.split() for line in text.splitlines())
        return config.parse_entries({word[1]: word[2] for word in words if len(word) == 3})

    def read(self) -> Reading:
        servers = parse_servers(ask(self._files.socket, "show stat -1 4 -1"))
        lines = self._stream.lines()
        if lines is None:  # the first look, or HAProxy was started again: counting begins anew
            self._stream.begin()
            self._tallies = Tallies()
        try:
            self._tallies.add(lines or [])
        except LostAnswersError as error:
            self._stream.close()
            raise PlaneUnavailable(f"HAProxy lost count of its answers: {error}") from error
        copies = Tallies().totals()
        return Reading(self._tallies.totals(), servers.healthy, servers.active, copies)

    def _held(self, colour: Colour, protocol: str) -> list[int | None]:
        """The port in service in each of the colour's slots."""
        main = config.backend(colour, protocol)
        return parse_ports(ask(self._files.socket, f"show servers state {main}"), colour)


def _placed(slots: config.Slots, endpoints: tuple[Endpoint, ...]) -> config.Slots:
    """Who has a slot keeps it; the others take free ones, those that just got free last."""
    kept = [one if one in endpoints else None for one in slots]
    free = sorted((i for i, one in enumerate(kept) if one is None), key=lambda i: bool(slots[i]))
    for slot, new in zip(free, (one for one in endpoints if one not in slots), strict=False):
        kept[slot] = new
    return tuple(kept)


def _moves(colour: Colour, protocol: str, slot: int, endpoint: Endpoint | None) -> Iterator[str]:
    """The commands that put an endpoint into a slot, or take out what is there."""
    name = config.server(colour, slot)
    main, *others = config.placements(colour, protocol)
    yield f"set server {main}/{name} state maint"
    if endpoint is None:
        return
    for each in (main, *others):
        port = config.port_of(endpoint, protocol)
        yield f"set server {each}/{name} addr 127.0.0.1 port {port}"
    yield f"set server {main}/{name} check-port {endpoint.http}"
    yield f"set server {main}/{name} state ready"
    # That it is ready is believed only from a check.
    yield f"set server {main}/{name} health down"


def _write(path: Path, text: str) -> None:
    if not path.exists() or path.read_text() != text:
        write_atomic(path, text.encode(), mode=0o600)
