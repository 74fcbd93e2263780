"""Request ids: the client's if it is safe to echo, else a generated one."""

from __future__ import annotations

import os
import re
from itertools import count

_FIT = re.compile(rb"[!-~]{1,128}")


class RequestIds:
    """Generates ids that are unique across processes."""

    def __init__(self) -> None:
        self._process = b"%x-" % int.from_bytes(os.urandom(6))
        self._numbers = count()

    def of(self, given: bytes | None) -> bytes:
        """Return `given` if it has 1 to 128 printable characters without spaces, else a new id."""
        if given is not None and _FIT.fullmatch(given):
            return given
        return self.make()

    def make(self) -> bytes:
        """Return a new id."""
        return b"%b%x" % (self._process, next(self._numbers))
