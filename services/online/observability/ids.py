"""Request ids: the caller's, if it can be sent back as it came, else one of our own."""

from __future__ import annotations

import os
import re
from itertools import count

_FIT = re.compile(rb"[!-~]{1,128}")


class RequestIds:
    """Ids that no other process makes, too."""

    def __init__(self) -> None:
        self._process = b"%x-" % int.from_bytes(os.urandom(6))
        self._numbers = count()

    def of(self, given: bytes | None) -> bytes:
        """`given`, if it is 1 to 128 printable characters without spaces, else a new one."""
        if given is not None and _FIT.fullmatch(given):
            return given
        return self.make()

    def make(self) -> bytes:
        """A new one."""
        return b"%b%x" % (self._process, next(self._numbers))
