"""The model that a client is generated for: from the store, a folder, or a running server."""

from __future__ import annotations

import asyncio
import re
from urllib.parse import urlsplit, urlunsplit

from mlctl.loadtest.target import describe_http, parse_url
from mlctl.services.layout.scorable import find_scorable
from mlctl.services.online.openapi.model import ApiModel, describe
from mlctl.services.protocol.wire import invalid, shown

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,127}|-")


def find_source(reference: str, token: str | None = None) -> ApiModel:
    """Return the model of a Bento's tag, a Bento's or bundle's folder, or a server's URL.

    TAG/NAME and URL/NAME choose one of several models; for a pipeline's tag it is the pipeline.
    `token` is for the server. Raises as `find_scorable` and `describe_http` do; INVALID_INPUT if a
    server's model has a name that is unsafe in code.
    """
    if "://" not in reference:
        model = find_scorable(reference)
        return describe(model.name, model.digest, model.signature, model.missing)
    parts = urlsplit(reference)
    address = parse_url(urlunsplit(parts._replace(path="", query="", fragment="")), token)
    found = asyncio.run(describe_http(address, parts.path.strip("/") or None))
    # The names become part of code. Those of tensors were checked with the signature.
    if not _PLAIN.fullmatch(found.name) or not _PLAIN.fullmatch(found.version or "-"):
        raise invalid(f"the server's model {shown(found.name)} has a name that is unsafe in code")
    return describe(found.name, found.version, found.signature)
