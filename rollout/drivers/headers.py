"""The marks on requests that the data planes know; clients and servers may rely on them."""

from __future__ import annotations

# A tester's request reaches the candidate whatever its weight.
TESTER_HEADER = "x-mlctl-slot"
TESTER_COOKIE = "mlctl-slot"
TESTER_VALUE = "candidate"

# What keeps a client on its slot: its own header, or else the cookie it was given.
CLIENT_HEADER = "x-mlctl-client"
CLIENT_COOKIE = "mlctl-client"

# On a copy of a request; its answer is thrown away.
COPY_HEADER = "x-mlctl-copy"

# The same on a request and on its copy; made by the proxy if the client sent none.
REQUEST_ID_HEADER = "x-request-id"
