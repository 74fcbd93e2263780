"""HAProxy's words as values: told answers into totals, `show stat` into health. Pure.

A request is counted for the colour whose backend it was sent to. One that was sent again, or
that the other colour's server had to answer, is an error of the colour that was asked. An answer
in pieces may fail, but it is not timed: its time is the length of a conversation.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from rollout.judging.counts import (
    GRPC_CLIENT_ERRORS,
    GRPC_FAILURES,
    LATENCY_EDGES_MS,
    Totals,
)
from rollout.model import Colour
from rollout.planes.haproxy_config import PROTOCOLS, SLOTS, backend, server

_COLOURS = {backend(colour, protocol): colour for colour in Colour for protocol in PROTOCOLS}
_MARK = "mlctl"
_FIELDS = 10
# Columns of `show stat`.
_BACKEND, _SERVER, _ACTIVE, _STATUS = 0, 1, 4, 17
# Columns of `show servers state`, and the bit that says: out of service by our word.
_NAME, _ADMIN_STATE, _PORT, _FORCED_OUT = 3, 6, 18, 1


class LostAnswersError(Exception):
    """Some answers were not told; nothing may be judged across the gap."""


@dataclass
class _Tally:
    requests: int = 0
    errors: int = 0
    client_errors: int = 0
    abandoned: int = 0
    # One more than there are edges: the last counts what is beyond all.
    by_edge: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_EDGES_MS) + 1))

    def totals(self) -> Totals:
        return Totals(
            self.requests,
            self.errors,
            sum(self.by_edge),
            tuple(accumulate(self.by_edge))[:-1],
            self.client_errors,
            self.abandoned,
        )


class Tallies:
    """The rising totals of both colours."""

    def __init__(self) -> None:
        self._of = {colour: _Tally() for colour in Colour}

    def totals(self) -> dict[Colour, Totals]:
        return {colour: tally.totals() for colour, tally in self._of.items()}

    def add(self, lines: Iterable[str]) -> None:
        """Count told answers; LostAnswersError if HAProxy says that it dropped some."""
        for line in lines:
            words = line.split()
            if words and (words[0] != _MARK or len(words) != _FIELDS):
                raise LostAnswersError(line)
            if words and (colour := _COLOURS.get(words[1])) is not None:
                _count(self._of[colour], colour, words)


def _count(tally: _Tally, colour: Colour, words: list[str]) -> None:
    _, _, server, status, total, receive, ended, retries, grpc, stream = words
    if status == "-1" and ended.startswith("C"):
        tally.abandoned += 1
        return
    code, grpc_status = int(status), int(grpc) if grpc.isdigit() else 0
    rescued = not server.startswith(colour) or retries.lstrip("+") != "0"
    broken = code < 0 or ended.startswith(("S", "s"))
    tally.requests += 1
    tally.errors += code >= 500 or grpc_status in GRPC_FAILURES or rescued or broken
    tally.client_errors += 400 <= code < 500 or grpc_status in GRPC_CLIENT_ERRORS
    if stream == "1":
        return
    took = max(0, int(total.lstrip("+")) - max(0, int(receive)))
    tally.by_edge[bisect_left(LATENCY_EDGES_MS, took)] += 1


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers of both colours at one moment."""

    healthy: Mapping[Colour, bool]
    active: Mapping[Colour, int]


def parse_servers(text: str) -> Servers:
    """The answer to `show stat -1 4 -1`: only servers."""
    healthy: set[tuple[str, Colour]] = set()
    active = dict.fromkeys(Colour, 0)
    for line in text.splitlines():
        words = line.split(",", _STATUS + 1)
        if len(words) <= _STATUS or line.startswith("#"):
            continue
        colour = next(colour for colour in Colour if words[_SERVER].startswith(colour))
        active[colour] += int(words[_ACTIVE])
        if words[_STATUS].startswith("UP"):
            healthy.add((words[_BACKEND], colour))
    return Servers(
        {
            colour: all((backend(colour, protocol), colour) in healthy for protocol in PROTOCOLS)
            for colour in Colour
        },
        active,
    )


def parse_ports(text: str, colour: Colour) -> list[int | None]:
    """The port in service in each slot, in the answer to `show servers state BACKEND`."""
    ports: dict[str, int] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) > _PORT and words[0] != "#" and not int(words[_ADMIN_STATE]) & _FORCED_OUT:
            ports[words[_NAME]] = int(words[_PORT])
    return [ports.get(server(colour, slot)) for slot in range(SLOTS)]
