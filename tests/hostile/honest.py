"""One honest client: a V2 request over HTTP, then a call over gRPC, each after the last answer."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hpack import Decoder

from benchmarks.loadgen import LoadTarget
from mlctl.services.online.grpc.http2 import frames
from mlctl.services.online.grpc.http2.frames import frame

_WAIT_SECONDS = 20.0
_PAUSE_SECONDS = 0.001
_WINDOW = frames.settings({frames.SettingId.INITIAL_WINDOW_SIZE: 1 << 20})
_HELLO = frames.PREFACE + _WINDOW + frames.window_update(0, 1 << 30)


@dataclass(frozen=True, slots=True)
class Latencies:
    """Seconds of each request by transport: by the wall clock, and of the servers' work."""

    wall: Mapping[str, list[float]]
    work: Mapping[str, list[float]]


class WorkClock:
    """The processor time of some processes in seconds.

    What a server did while a client waited is the same on an idle and on a busy machine.
    """

    def __init__(self, processes: Iterable[int]) -> None:
        # A process's clock on Linux (clock_getcpuclockid): its number, and 2 for scheduled time.
        self._clocks = [~process << 3 | 2 for process in processes]

    def now(self) -> float:
        """Return the seconds since the processes began."""
        return sum(map(time.clock_gettime, self._clocks))


class HttpClient:
    """One connection of HTTP/1.1 that sends the same request."""

    def __init__(self, target: LoadTarget) -> None:
        self._request = target.request
        self._socket = _connect(target.port)
        self._file = self._socket.makefile("rb")

    def ask(self) -> None:
        """Send the request and read its answer; RuntimeError if it is not 200."""
        self._socket.sendall(self._request)
        status, length = self._file.readline(), 0
        while line := self._file.readline().strip():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        self._file.read(length)
        if not status.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"the honest request got {status!r}")

    def close(self) -> None:
        """End the connection."""
        self._file.close()
        self._socket.close()


class GrpcClient:
    """One connection of HTTP/2 that sends the same call."""

    def __init__(self, target: LoadTarget) -> None:
        size = int.from_bytes(target.request[:4], "big")
        self._block, self._message = target.request[4 : 4 + size], target.request[4 + size :]
        self._socket = _connect(target.port)
        self._file = self._socket.makefile("rb")
        self._decoder = Decoder()
        self._stream = -1
        self._socket.sendall(_HELLO)

    def ask(self) -> None:
        """Send the call and read its answer; RuntimeError if its status is not OK."""
        self._stream += 2
        self._socket.sendall(
            frame(frames.HEADERS, frames.END_HEADERS, self._stream, self._block)
            + frame(frames.DATA, frames.END_STREAM, self._stream, self._message)
        )
        trailers: dict[str, str] = {}
        while True:
            head = self._file.read(9)
            if len(head) < 9:
                raise RuntimeError("the honest client's connection was ended")
            word, flags, stream = frames.FRAME_HEAD.unpack(head)
            payload = self._file.read(word >> 8)
            kind = word & 0xFF
            if kind == frames.SETTINGS and not flags & frames.ACK:
                self._socket.sendall(frame(frames.SETTINGS, frames.ACK, 0))
            elif kind == frames.PING and not flags & frames.ACK:
                self._socket.sendall(frame(frames.PING, frames.ACK, 0, payload))
            elif kind == frames.HEADERS:
                trailers |= {str(n): str(v) for n, v in self._decoder.decode(payload)}
            if kind == frames.GOAWAY or (kind == frames.RST_STREAM and stream == self._stream):
                raise RuntimeError("the honest call was reset")
            if kind == frames.HEADERS and flags & frames.END_STREAM:
                break
        if trailers.get("grpc-status") != "0":
            raise RuntimeError(f"the honest call got {trailers}")

    def close(self) -> None:
        """End the connection."""
        self._file.close()
        self._socket.close()


def _connect(port: int) -> socket.socket:
    found = socket.create_connection(("127.0.0.1", port), _WAIT_SECONDS)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found


def measure(targets: Mapping[str, LoadTarget], clock: WorkClock, seconds: float) -> Latencies:
    """Send requests to `targets`, by transport, in turns for `seconds`.

    Raises OSError or RuntimeError if a request has no answer, or another than a success.
    """
    found = Latencies({name: [] for name in targets}, {name: [] for name in targets})
    with contextlib.ExitStack() as stack:
        clients: dict[str, HttpClient | GrpcClient] = {
            "http": stack.enter_context(contextlib.closing(HttpClient(targets["http"]))),
            "grpc": stack.enter_context(contextlib.closing(GrpcClient(targets["grpc"]))),
        }
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for transport, client in clients.items():
                begun, worked = time.perf_counter(), clock.now()
                client.ask()
                found.wall[transport].append(time.perf_counter() - begun)
                found.work[transport].append(clock.now() - worked)
                time.sleep(_PAUSE_SECONDS)
    return found
