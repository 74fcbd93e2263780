"""Bearer tokens: where the server requires a token, a caller must send one of them.

The token is hashed and compared with every token's hash in constant time, so that the time
of a rejection reveals neither how much of a token was right nor which one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path

from bundle.errors import ErrorCode, MlctlError
from bundle.tokens import parse_tokens, read_tokens

# The maximum delay until a change of the file takes effect.
_CHECK_SECONDS = 1.0
_SCHEME = b"Bearer "
_Stamp = tuple[int, int, int]
logger = logging.getLogger("mlctl.access")


class Access:
    """The tokens that open a listener; with neither `token` nor `file`, it is open to all.

    The file is read again when it has changed. If it cannot be read or has no token, the old
    tokens stay and the log says so: a slip in a rotation must not lock callers out.

    Args:
        token: the one token.
        file: a file with a token on each line.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        token: str | None = None,
        file: Path | None = None,
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
        self._file = file
        self._clock = clock
        self._next_check = clock() + _CHECK_SECONDS
        self._stamp: _Stamp | None = None
        self._digests: tuple[bytes, ...] = ()
        if token is not None:
            self._digests = _digests(parse_tokens(token, "MLCTL_TOKEN"))
        elif file is not None:
            self._stamp = _stamp(file)
            self._digests = _digests(read_tokens(file))

    def allows(self, authorization: bytes | None) -> bool:
        """Return whether a request with this Authorization header may be answered."""
        if not self.required:
            return True
        if self._file is not None and self._clock() >= self._next_check:
            self._reload(self._file)
        if authorization is None:
            return False
        if self._has(authorization):
            return True
        scheme = authorization[: len(_SCHEME)]
        if scheme == _SCHEME or scheme.lower() != _SCHEME.lower():
            return False
        return self._has(_SCHEME + authorization[len(_SCHEME) :])

    def require(self, authorization: bytes | None) -> None:
        """Raise UNAUTHENTICATED unless `allows`."""
        if self.required and not self.allows(authorization):
            raise unauthenticated()

    def _has(self, authorization: bytes) -> bool:
        digest = sha256(authorization).digest()
        found = False
        for expected in self._digests:
            found |= compare_digest(digest, expected)
        return found

    def _reload(self, file: Path) -> None:
        self._next_check = self._clock() + _CHECK_SECONDS
        stamp = _stamp(file)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._digests = _digests(read_tokens(file))
        except MlctlError as error:
            logger.error("the tokens stay as they were: %s", error.message)  # noqa: TRY400 - it says all
        else:
            logger.info("the token file has changed: %d tokens", len(self._digests))


def unauthenticated() -> MlctlError:
    """Return the error of a missing or wrong token; it is the same for both."""
    return MlctlError(ErrorCode.UNAUTHENTICATED, "the request shows no token that is valid here")


def _digests(tokens: Iterable[str]) -> tuple[bytes, ...]:
    return tuple(sha256(_SCHEME + token.encode()).digest() for token in tokens)


def _stamp(file: Path) -> _Stamp | None:
    """Return a value that changes with the file, also when a link points to another file."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
