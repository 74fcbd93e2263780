"""The seams of a stream: where messages come from, where answers go, and what bytes mean.

A consumer's process has one thread that talks to the broker: everything of a link is called
from it. Offsets are the broker's own; the engine only keeps the order in which they came.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable
from urllib.parse import parse_qsl

import numpy as np

from bundle.errors import ErrorCode, MlctlError

Headers = tuple[tuple[str, bytes], ...]
# Their places are paths and names: nobody has a password there.
_WITHOUT_USERS = frozenset({"file", "sqlite", "precomputed"})


class Guarantee(StrEnum):
    """What a killed, cut off or restarted consumer can do to the answers; no message is lost."""

    EXACTLY_ONCE = "exactly once"
    AT_LEAST_ONCE = "at least once"


@dataclass(frozen=True, slots=True)
class StreamUrl:
    """A stream's address: `scheme://address?options#topic`, or `-` for the standard streams."""

    scheme: str
    address: str = ""
    topic: str = ""
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> StreamUrl:
        """The place that a user wrote; a plain path is a file of JSON lines.

        INVALID_INPUT for what may be a password with a # or a ? in it: it would be cut there, and
        its parts be taken for what may be shown.
        """
        if text == "-":
            return cls("-")
        scheme, separator, rest = text.partition("://")
        if not separator:
            return cls("file", text)
        scheme = scheme.lower()
        rest, _, topic = rest.partition("#")
        address, _, query = rest.partition("?")
        if scheme not in _WITHOUT_USERS:
            if "@" in topic or "@" in query:
                raise MlctlError(
                    ErrorCode.INVALID_INPUT,
                    f"a {scheme}:// place has an @ after its first # or ?",
                    "In a user or a password write # as %23 and ? as %3F; elsewhere write @ as "
                    "%40.",
                )
            topic = topic.replace("%40", "@")
        return cls(scheme, address, topic, dict(parse_qsl(query, keep_blank_values=True)))

    def named(self, topic: str) -> StreamUrl:
        """The place of another topic at the same address."""
        return StreamUrl(self.scheme, self.address, topic, self.options)

    def shown(self) -> str:
        """For messages and headers: without passwords, tokens and the options."""
        if self.scheme == "-":
            return "-"
        secret, at, host = self.address.rpartition("@")
        user, colon, _ = secret.partition(":")
        # What has no password beside it may be a token.
        who = user if colon and "@" not in user else ""
        return f"{self.scheme}://{who}{at}{host}{'#' if self.topic else ''}{self.topic}"

    def number(self, name: str, usual: float) -> float:
        """The option `name`, a number above 0; INVALID_INPUT if it is none."""
        text = self.options.get(name)
        if text is None:
            return usual
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 < value < float("inf"):
            raise MlctlError(ErrorCode.INVALID_INPUT, f"{name}={text}: a number above 0 is needed")
        return value


class Message(NamedTuple):
    """A message as it came. A tuple, since hundreds of thousands are made in a second.

    `offset` is its place in `partition`: text or a number, as the broker has it. `time_ms` is
    when it was sent, in milliseconds since 1970; 0 if the broker does not say.
    """

    partition: str
    offset: int | str
    value: bytes
    key: bytes | None = None
    headers: Headers = ()
    time_ms: int = 0


class Outgoing(NamedTuple):
    """A message to send."""

    value: bytes
    key: bytes | None = None
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class Commit:
    """What became of some messages, to be made durable as one step where the broker can.

    `done` are all of them in the order of the poll, also those that have no answer. `dead` go
    to the dead letters: they are the sources' own key, value and headers, and why.
    """

    done: Sequence[Message]
    answers: Sequence[Outgoing] = ()
    dead: Sequence[Outgoing] = ()


class LostPartitionsError(Exception):
    """Some messages to commit belong to another consumer by now, so nothing was committed.

    Whoever gets it forgets all that it has not committed. The link's next polls give again
    what follows the last commit in the partitions that are still its own.
    """


class RefusedAnswersError(MlctlError):
    """The broker can never take some answers, so nothing was committed.

    `refused` says why, by index in Commit.answers. Without them, as dead letters of their
    sources, the batch may be committed.
    """

    def __init__(self, refused: Mapping[int, str]) -> None:
        super().__init__(ErrorCode.PAYLOAD_TOO_LARGE, next(iter(refused.values())))
        self.refused = refused


class StreamConnection(Protocol):
    """One consumer of a group, with the places that its answers and dead letters go to.

    BROKER_UNAVAILABLE from any method is worth another try; other errors end the run.
    """

    guarantee: Guarantee

    def poll(self, limit: int, wait_s: float) -> Sequence[Message]:
        """At most `limit` messages that follow the last poll's, as soon as there are some.

        Waits at most `wait_s` for the first one, and not at all for more. Must be called at
        least each second, with a limit of 0 when there is no room: it keeps the membership of
        the group, and calls the listener of a rebalance.
        """
        ...

    def commit(self, batch: Commit) -> None:
        """Make answers, dead letters and the position durable; after an error it may be repeated.

        Batches are committed in the order of their polls. LostPartitionsError: see there.
        """
        ...

    def lag(self) -> Mapping[str, int]:
        """By partition of this consumer, how many messages are behind the last commit."""
        ...

    def group_lag(self) -> int:
        """Return how many messages the group has not committed, over all partitions.

        It also counts partitions that other members hold or that no member holds, so 0 means
        that the whole group has nothing left.
        """
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc_info: object) -> None:
        """Leave the group; what was not committed comes again."""
        ...


class Consumer(Protocol):
    """The half of a link that reads, for answers that go to another broker."""

    def poll(self, limit: int, wait_s: float) -> Sequence[Message]: ...

    def acknowledge(self, done: Sequence[Message]) -> None:
        """As Link.commit, of the position alone."""
        ...

    def lag(self) -> Mapping[str, int]: ...

    def group_lag(self) -> int: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc_info: object) -> None: ...


class Producer(Protocol):
    """The half of a link that writes, and what `mlctl stream send` writes with."""

    def publish(self, messages: Sequence[Outgoing]) -> None:
        """Returns when all of them are durable."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc_info: object) -> None: ...


class RebalanceListener(Protocol):
    """Told from inside poll() that partitions go to another consumer."""

    def revoked(self, partitions: Sequence[str]) -> None:
        """They are still ours until this returns: the last moment to commit."""
        ...

    def lost(self, partitions: Sequence[str]) -> None:
        """They are someone else's already: a commit would be refused or, worse, accepted."""
        ...


@runtime_checkable
class Rebalancing(Protocol):
    """A link or consumer whose partitions move between the members of a group."""

    def listen(self, listener: RebalanceListener) -> None: ...


@runtime_checkable
class Pausable(Protocol):
    """A link or consumer that the broker's client fills ahead of poll()."""

    def pause(self) -> None:
        """Fetch no more until resume(); poll() still keeps the membership."""
        ...

    def resume(self) -> None: ...


@runtime_checkable
class Ending(Protocol):
    """A link or consumer whose source may come to an end, as a pipe does."""

    @property
    def ended(self) -> bool:
        """Whether poll() has given all there will ever be: the run ends once it is committed."""
        ...


@runtime_checkable
class TakingOver(Protocol):
    """A link or consumer whose broker gives a killed member's messages to others after a time."""

    @property
    def takeover_s(self) -> float:
        """Seconds of silence after which a member is given up."""
        ...


@dataclass(frozen=True, slots=True)
class LinkRequest:
    """What `mlctl stream run` asks of a transport. `source` is of its scheme, as are the others.

    `group` names the consumers that share the work; `start` is where a new group begins:
    "earliest" or "latest". `exactly_once` asks for the broker's transactions. With `ordered`
    messages of one key keep their order across retries and consumers.
    """

    source: StreamUrl
    group: str
    answers: StreamUrl | None = None
    dead: StreamUrl | None = None
    start: str = "earliest"
    exactly_once: bool = False
    ordered: bool = False


@dataclass(frozen=True, slots=True)
class Examined:
    """What a broker says of a place: for `doctor`, `lag` and people.

    `messages` is how many it holds and `lag` how many of them the group has not committed, by
    partition; None where the broker cannot say.
    """

    guarantee: Guarantee
    server: str
    messages: int | None = None
    lag: Mapping[str, int] | None = None
    remarks: tuple[str, ...] = ()


def no_group(group: str) -> MlctlError:
    """NOT_FOUND for a group without a position."""
    return MlctlError(ErrorCode.NOT_FOUND, f"there is no group {group!r}")


def group_in_use(group: str) -> MlctlError:
    """JOB_RUNNING for a group with a member, which is not to be forgotten."""
    return MlctlError(
        ErrorCode.JOB_RUNNING,
        f"group {group!r} has a running consumer",
        "Stop its runs first; a killed one counts until its lease or idle time is over.",
    )


class Transport(Protocol):
    """One kind of broker."""

    def open_link(self, request: LinkRequest) -> StreamConnection:
        """A link whose answers and dead letters live at the same address as the source."""
        ...

    def open_consumer(self, request: LinkRequest) -> Consumer: ...

    def open_producer(self, place: StreamUrl) -> Producer: ...


@runtime_checkable
class Browsable(Protocol):
    """A transport whose streams can be looked at without taking part."""

    def browse(self, place: StreamUrl, *, last: int | None = None) -> Iterator[Message]:
        """The messages that are there now, oldest first: all, or only the `last` ones."""
        ...

    def follow(self, place: StreamUrl, wait_s: float) -> Iterator[Message | None]:
        """Messages from now on, and None whenever `wait_s` seconds brought none."""
        ...

    def examine(self, place: StreamUrl, group: str) -> Examined:
        """What the broker says of `place`; BROKER_UNAVAILABLE, NOT_FOUND."""
        ...


@runtime_checkable
class Forgetting(Protocol):
    """A transport that keeps messages for a group until it is told to forget that group."""

    def forget(self, place: StreamUrl, group: str) -> None:
        """Delete the position of `group`: nothing is kept for it any more.

        NOT_FOUND if there is no such group; JOB_RUNNING if it has a member.
        """
        ...


@dataclass(frozen=True, slots=True)
class Decoded:
    """Messages as rows of tensors. `rows[i]` of them are of the i-th message that decoded.

    Inputs are arrays [sum of rows, ...]; `kept` are the indices of those messages, and
    `rejected` say by index why the others are none. `carried[i]` is what the i-th message's
    answer needs of it, for encode(); it is empty where answers need nothing.
    """

    inputs: Mapping[str, np.ndarray]
    kept: Sequence[int]
    rows: Sequence[int]
    rejected: Mapping[int, str] = field(default_factory=dict)
    carried: Sequence[Any] = ()


class Payload(Protocol):
    """One form of payload, for one model's signature."""

    name: str

    def decode(self, values: Sequence[bytes]) -> Sequence[Decoded]:
        """The messages as tensors: several items only where shapes differ between messages."""
        ...

    def encode(
        self, outputs: Mapping[str, np.ndarray], rows: Sequence[int], carried: Sequence[Any] = ()
    ) -> Sequence[bytes]:
        """A value for each message, from the outputs [sum of rows, ...] in its order.

        `carried` is of the same messages as `rows`, or empty as in Decoded. MlctlError if the
        payload cannot say one of the answers, such as a NaN in JSON: asked for each message
        alone it tells which.
        """
        ...
