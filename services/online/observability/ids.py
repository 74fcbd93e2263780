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

    def of(self, client_id: bytes | None) -> bytes:
        """Return `client_id` if it has 1 to 128 visible characters, else a new id."""
        if client_id is not None and _FIT.fullmatch(client_id):
            return client_id
        return self.make()

    def make(self) -> bytes:
        """Return a new id."""
        return b"%b%x" % (self._process, next(self._numbers))
