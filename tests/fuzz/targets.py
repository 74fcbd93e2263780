"""All targets by name."""

from __future__ import annotations

from tests.fuzz.documents import DOCUMENTS
from tests.fuzz.files import FILES
from tests.fuzz.sockets import SOCKETS
from tests.fuzz.typed import TYPED

TARGETS = {target.name: target for target in (*DOCUMENTS, *TYPED, *FILES, *SOCKETS)}
