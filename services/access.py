"""Bearer tokens: where the server requires a token, a caller must send one of them.

The token is hashed and compared with every token's hash in constant time, so that the time
of a rejection reveals neither how much of a token was right nor which one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.tokens import ClientToken, parse_tokens, read_tokens
from mlctl.services.rate_limit import RateLimit

# The maximum delay until a change of the file takes effect.
_CHECK_SECONDS = 1.0
_SCHEME = b"Bearer "
_Stamp = tuple[int, int, int]
logger = logging.getLogger("mlctl.access")


class RateLimitError(MlctlError):
    """RATE_LIMIT_EXCEEDED with the seconds until the client's next request is admitted."""

    def __init__(self, client: str, rate: float, retry_after: float) -> None:
        super().__init__(
            ErrorCode.RATE_LIMIT_EXCEEDED,
            f"client {client!r} sends more than {rate:g} requests per second",
        )
        self.retry_after = retry_after


class Access:
    """The tokens that open a listener; with neither `token` nor `file`, it is open to all.

    The file is read again when it has changed. If it cannot be read or has no token, the old
    tokens stay and the log says so: a slip in a rotation must not lock callers out.

    Args:
        token: the one token.
        file: a file with a token on each line, which may be named.
        max_rps: requests per second of each client, whatever number of tokens it has; None for no
            limit.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        token: str | None = None,
        file: Path | None = None,
        max_rps: float | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if token is not None and file is not None:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                "MLCTL_TOKEN and MLCTL_TOKEN_FILE are both set",
                "Unset one.",
            )
        self.required = token is not None or file is not None
        if max_rps is not None and not self.required:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                "MLCTL_MAX_CLIENT_RPS is set, but no tokens, by which clients are known",
                "Set MLCTL_TOKEN_FILE, or unset it.",
            )
        self._file = file
        self._max_rps = max_rps
        self._clock = clock
        self._next_check = clock() + _CHECK_SECONDS
        self._stamp: _Stamp | None = None
        # The hash of each token, and its client.
        self._clients: tuple[tuple[bytes, str], ...] = ()
        self._limits: dict[str, RateLimit] = {}
        if token is not None:
            self._use(parse_tokens(token, "MLCTL_TOKEN"))
        elif file is not None:
            self._stamp = _stamp(file)
            self._use(read_tokens(file))

    def allows(self, authorization: bytes | None) -> bool:
        """Return whether a request with this Authorization header may be answered."""
        return not self.required or self._find(authorization) is not None

    def client_of(self, authorization: bytes | None) -> str:
        """Return the name of the client that sends this Authorization header.

        It is empty where no token is required. Raises UNAUTHENTICATED.
        """
        if not self.required:
            return ""
        client = self._find(authorization)
        if client is None:
            raise unauthenticated()
        return client

    def charge(self, client: str) -> None:
        """Count a request of `client`; RATE_LIMIT_EXCEEDED beyond its limit."""
        limit = self._limits.get(client)
        if limit is not None and (wait := limit.take(self._clock())):
            raise RateLimitError(client, limit.rate, wait)

    def _find(self, authorization: bytes | None) -> str | None:
        if self._file is not None and self._clock() >= self._next_check:
            self._reload(self._file)
        if authorization is None:
            return None
        if (client := self._match(authorization)) is not None:
            return client
        scheme = authorization[: len(_SCHEME)]
        if scheme == _SCHEME or scheme.lower() != _SCHEME.lower():
            return None
        return self._match(_SCHEME + authorization[len(_SCHEME) :])

    def _match(self, authorization: bytes) -> str | None:
        digest = sha256(authorization).digest()
        found = None
        for expected, client in self._clients:
            if compare_digest(digest, expected):
                found = client
        return found

    def _use(self, tokens: Sequence[ClientToken]) -> None:
        """Admit clients with these tokens alone; a client that stays keeps its limit as it is."""
        self._clients = tuple(
            (sha256(_SCHEME + token.encode()).digest(), client) for client, token in tokens
        )
        if (rate := self._max_rps) is not None:
            self._limits = {
                client: self._limits.get(client) or RateLimit(rate) for client, _ in tokens
            }

    def _reload(self, file: Path) -> None:
        self._next_check = self._clock() + _CHECK_SECONDS
        stamp = _stamp(file)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._use(read_tokens(file))
        except MlctlError as error:
            logger.error("the tokens stay as they were: %s", error.message)  # noqa: TRY400 - it says all
        else:
            logger.info("the token file has changed: %d tokens", len(self._clients))


def unauthenticated() -> MlctlError:
    """Return the error of a missing or wrong token; it is the same for both."""
    return MlctlError(ErrorCode.UNAUTHENTICATED, "missing or invalid bearer token")


def _stamp(file: Path) -> _Stamp | None:
    """Return a value that changes with the file, also when a link points to another file."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
