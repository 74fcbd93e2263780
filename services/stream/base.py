"""Values and interfaces of a stream: URLs, messages, connections, transports and payloads.

One thread of a run owns its connection and calls all of its methods. Offsets belong to the broker;
the engine only keeps the order in which messages were polled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, Self
from urllib.parse import parse_qsl

import numpy as np

from mlctl.core.errors import ErrorCode, MlctlError

# Retention does not wait for a group that had no consumer for 7 days, Kafka's default.
ABANDONED_SECONDS = 7 * 86_400
# A header's value may be null.
Headers = tuple[tuple[str, bytes | None], ...]
# Schemes whose address is a path or a name, which never contains a password.
_WITHOUT_USERS = frozenset({"file", "sqlite"})
# Schemes whose path may be a secret, as that of a webhook.
_SECRET_PATHS = frozenset({"http", "https"})


class Guarantee(StrEnum):
    """How often a message is answered when consumers are killed, cut off or restarted."""

    EXACTLY_ONCE = "exactly once"
    AT_LEAST_ONCE = "at least once"


@dataclass(frozen=True, slots=True)
class StreamUrl:
    """A stream's URL: `scheme://address?options#topic`, or `-` for standard input or output."""

    scheme: str
    address: str = ""
    topic: str = ""
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> StreamUrl:
        """Parse a URL; a plain path is a file of JSON lines.

        INVALID_INPUT if a password may contain an unescaped # or ?: the URL would be cut inside
        the password, and parts of it would appear in messages.
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
                    f"the {scheme}:// URL has an @ after its first # or ?",
                    "In a user name or password write # as %23 and ? as %3F; elsewhere write @ as "
                    "%40.",
                )
            topic = topic.replace("%40", "@")
        return cls(scheme, address, topic, dict(parse_qsl(query, keep_blank_values=True)))

    def with_topic(self, topic: str) -> StreamUrl:
        """Return the URL of another topic at the same address."""
        return StreamUrl(self.scheme, self.address, topic, self.options)

    def redacted(self) -> str:
        """Return the URL for messages: without passwords, tokens and options."""
        if self.scheme == "-":
            return "-"
        secret, at, host = self.address.rpartition("@")
        user, colon, _ = secret.partition(":")
        # A user name without a password may be a token.
        user = user if colon and "@" not in user else ""
        if self.scheme in _SECRET_PATHS:
            host = host.partition("/")[0]
        table = f"?table={self.options['table']}" if "table" in self.options else ""
        topic = f"#{self.topic}" if self.topic else ""
        return f"{self.scheme}://{user}{at}{host}{table}{topic}"

    def check_topic(self, example: str) -> None:
        """INVALID_INPUT if the URL has no address or no topic."""
        if not self.address or not self.topic:
            missing = "topic" if self.address else "address"
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"{self.redacted()} names no {missing}",
                f"Write it as {example}.",
            )

    def number(self, name: str, default: float) -> float:
        """Return the option `name` as a number; INVALID_INPUT unless it is above 0."""
        text = self.options.get(name)
        if text is None:
            return default
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 < value < float("inf"):
            raise MlctlError(
                ErrorCode.INVALID_INPUT, f"option {name}={text} is not a number above 0"
            )
        return value

    def check_options(self, allowed: Collection[str]) -> None:
        """INVALID_INPUT if the URL has an option that is not in `allowed`."""
        if unknown := sorted(set(self.options) - set(allowed)):
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"{self.redacted()} has no option {unknown[0]!r}",
                f"Options: {', '.join(sorted(allowed))}.",
            )


class Message(NamedTuple):
    """A message as the broker delivered it.

    `offset` is its position in `partition`, in the broker's own form. `value` is None for a
    tombstone, which deletes its key in a compacted topic. `time_ms` is when it was sent, in
    milliseconds since 1970; 0 if the broker does not report it.
    """

    partition: str
    offset: int | str
    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    time_ms: int = 0

    @property
    def content(self) -> bytes:
        """The value; empty for a tombstone."""
        return self.value or b""


class Outgoing(NamedTuple):
    """A message to send; a `value` of None stays null where the broker can store that."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()

    @property
    def content(self) -> bytes:
        """The value; empty for null."""
        return self.value or b""


@dataclass(frozen=True, slots=True)
class Commit:
    """The result of a batch, to be made durable in one step where the broker can.

    `done` are all messages of the batch in the order of the poll. `dead` are messages that
    cannot be answered, with their own key, value and headers, and the reason as headers.
    """

    done: Sequence[Message]
    answers: Sequence[Outgoing] = ()
    dead: Sequence[Outgoing] = ()


class LostPartitionsError(Exception):
    """Another consumer owns some of the messages of a commit, so nothing was committed.

    The caller discards everything that it has not committed. Later polls return the messages
    after the last commit in the partitions that this consumer still owns.
    """


class RejectedAnswersError(MlctlError):
    """The destination can never accept some answers, so the batch was not committed.

    `rejected` has the reasons by index in Commit.answers. The batch may be committed without
    these answers, with dead letters of their messages instead.
    """

    def __init__(self, code: ErrorCode, rejected: Mapping[int, str]) -> None:
        super().__init__(code, next(iter(rejected.values())))
        self.rejected = rejected


class RetryLaterError(MlctlError):
    """A destination is unavailable; it may accept the messages after `retry_after` seconds."""

    retry_after: float

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        super().__init__(ErrorCode.SINK_UNAVAILABLE, message)
        self.retry_after = retry_after


class RebalanceListener(Protocol):
    """Notified from inside poll() when partitions move to another consumer."""

    def revoked(self, partitions: Sequence[str]) -> None:
        """Commit work on `partitions`: this consumer owns them until this method returns."""
        ...

    def lost(self, partitions: Sequence[str]) -> None:
        """Discard work on `partitions`: another consumer already owns them."""
        ...


@dataclass(frozen=True, slots=True)
class ConnectionRequest:
    """The streams and the guarantee that a run needs of a transport.

    `group` names the consumers that share the work; `start` is where a new group begins:
    "earliest" or "latest". `exactly_once` asks for the broker's transactions.
    """

    source: StreamUrl
    group: str
    answers: StreamUrl | None = None
    dead: StreamUrl | None = None
    start: str = "earliest"
    exactly_once: bool = False


class StreamConnection(ABC):
    """A consumer of one group, with the destinations of its answers and dead letters.

    Entering it joins the group; leaving it leaves the group, and uncommitted messages are
    delivered again. After BROKER_UNAVAILABLE from any method the caller may repeat the call;
    other errors end the run.
    """

    guarantee: Guarantee
    listener: RebalanceListener | None = None

    @abstractmethod
    def poll(self, limit: int, wait_s: float) -> Sequence[Message]:
        """Return up to `limit` messages that follow those of the last poll.

        Waits up to `wait_s` seconds for the first message, never for more. Call it at least
        once a second, with a limit of 0 when there is no room: it keeps the membership in the
        group alive and calls the rebalance listener.
        """

    @abstractmethod
    def commit(self, batch: Commit) -> None:
        """Make answers, dead letters and the position durable; may be repeated after an error.

        Batches are committed in the order of their polls. Raises LostPartitionsError.
        """

    @abstractmethod
    def lag(self) -> Mapping[str, int]:
        """Return the number of uncommitted messages by partition of this consumer."""

    @abstractmethod
    def group_lag(self) -> int:
        """Return the number of uncommitted messages of the group in all partitions.

        It includes partitions of other members and of no member, so 0 means that the whole
        group has nothing left.
        """

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def __exit__(self, *exc_info: object) -> None: ...

    def listen(self, listener: RebalanceListener) -> None:
        """Notify `listener` of partitions that move to other consumers."""
        self.listener = listener

    @property
    def ended(self) -> bool:
        """True if the source can have no more messages, such as a closed pipe."""
        return False

    @property
    def takeover_s(self) -> float:
        """Seconds without contact after which the broker gives a member's messages to others."""
        return 0.0


class Producer(Protocol):
    """Writes messages to one stream."""

    def publish(self, messages: Sequence[Outgoing]) -> None:
        """Send messages, and return when all of them are durable."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc_info: object) -> None: ...


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """A consumer group of a stream.

    `lag` is the number of uncommitted messages, None where the broker cannot count them.
    `idle_s` are seconds since a consumer of the group was last active, None if not known.
    """

    name: str
    lag: int | None
    members: int
    idle_s: float | None = None


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """State of a stream, as its broker reports it.

    `messages` is the number of stored messages, `lag` the group's uncommitted messages by
    partition; None where the broker does not know. `groups` is None where groups do not delay
    the removal of messages.
    """

    guarantee: Guarantee
    server: str
    messages: int | None = None
    lag: Mapping[str, int] | None = None
    groups: tuple[GroupStatus, ...] | None = None
    remarks: tuple[str, ...] = ()


class Transport(ABC):
    """One kind of broker, or with `answers_only` a destination for answers of a run alone."""

    answers_only = False

    def open_connection(self, request: ConnectionRequest) -> StreamConnection:
        """Return a connection whose answers and dead letters are at the source's address."""
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{request.source.redacted()} is not a source of messages: it can only be written to",
        )

    @abstractmethod
    def open_producer(self, url: StreamUrl) -> Producer:
        """Return a producer of the stream at `url`."""

    def browse(self, url: StreamUrl, *, last: int | None = None) -> Iterator[Message]:  # noqa: ARG002
        """Yield the stored messages, oldest first: all, or only the `last` ones."""
        raise _cannot_read(url)

    def status(self, url: StreamUrl, group: str) -> StreamStatus:  # noqa: ARG002
        """Return the state of the stream at `url`; BROKER_UNAVAILABLE, NOT_FOUND."""
        raise _cannot_read(url)

    def forget_group(self, url: StreamUrl, group: str) -> None:  # noqa: ARG002
        """Delete the position of `group`, so that no message is kept for it.

        NOT_FOUND for an unknown group; JOB_RUNNING if the group has a member.
        """
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"retention of {url.scheme} streams does not wait for consumer groups",
            "There is no group to remove.",
        )


def no_group(group: str) -> MlctlError:
    """NOT_FOUND for a group without a position."""
    return MlctlError(ErrorCode.NOT_FOUND, f"there is no consumer group {group!r}")


def group_in_use(group: str) -> MlctlError:
    """JOB_RUNNING for a group that has a member."""
    return MlctlError(
        ErrorCode.JOB_RUNNING,
        f"group {group!r} has a running consumer",
        "Stop its runs first; a killed consumer counts until its lease or idle time has passed.",
    )


def _cannot_read(url: StreamUrl) -> MlctlError:
    return MlctlError(
        ErrorCode.INVALID_INPUT, f"{url.redacted()} can only be written to, not read or inspected"
    )


@dataclass(frozen=True, slots=True)
class Decoded:
    """Messages as rows of tensors. `rows[i]` is the number of rows of message `kept[i]`.

    Inputs are arrays [sum of rows, ...]; `kept` are the indices of the decoded messages, and
    `rejected` has the reasons of the others by index. `carried[i]` is what encode() needs of
    message `kept[i]`; it is empty where answers need nothing of their messages.
    """

    inputs: Mapping[str, np.ndarray]
    kept: Sequence[int]
    rows: Sequence[int]
    rejected: Mapping[int, str] = field(default_factory=dict)
    carried: Sequence[Any] = ()


class Payload(Protocol):
    """One payload format for one model's signature."""

    name: str

    def decode(self, values: Sequence[bytes]) -> Sequence[Decoded]:
        """Return the messages as tensors, one item for each set of equal shapes."""
        ...

    def encode(
        self, outputs: Mapping[str, np.ndarray], rows: Sequence[int], carried: Sequence[Any] = ()
    ) -> Sequence[bytes]:
        """Return a value for each message, from the outputs [sum of rows, ...] in its order.

        `rows` and `carried` belong to the same messages as in Decoded. MlctlError if the format
        cannot represent an answer, such as a NaN in JSON; the caller then encodes each message
        on its own.
        """
        ...
