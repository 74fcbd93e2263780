"""A parser that takes no offer to change the protocol but the one to websockets.

RFC 9110 (7.8): a server may ignore an Upgrade. The parser beneath stops at the end of such a
head and calls the body another protocol's. So the head is fed again without the offer.
"""

from __future__ import annotations

from typing import Any

import httptools

_OFFERS = frozenset({b"upgrade", b"http2-settings"})
_CALLBACKS = ("on_message_begin", "on_url", "on_header", "on_body")


class PlainParser(httptools.HttpRequestParser):
    """Parses for `protocol`, which is uvicorn's or one of its children."""

    def __init__(self, protocol: Any) -> None:
        self._hooks = _Hooks(protocol, self)
        self._begin()

    def feed_data(self, data: Any) -> None:
        while True:
            try:
                super().feed_data(data)
            except httptools.HttpParserUpgrade as error:
                if not self._hooks.ignored:
                    raise
                data = self._hooks.head() + bytes(data[error.args[0] :])
                self._begin()  # it may think that the connection ends here
            else:
                return

    def _begin(self) -> None:
        super().__init__(self._hooks)
        # As uvicorn has it: bytes after the last request of a connection are no error.
        self.set_dangerous_leniencies(lenient_data_after_close=True)


class _Hooks:
    """Passes the parser's calls on, but for those about a head that will be fed again."""

    def __init__(self, protocol: Any, parser: PlainParser) -> None:
        self.ignored = False
        self._protocol = protocol
        self._parser = parser
        for name in _CALLBACKS:
            setattr(self, name, getattr(protocol, name))

    def on_headers_complete(self) -> None:
        self.ignored = self._parser.should_upgrade() and not self._is_taken()
        if not self.ignored:
            self._protocol.on_headers_complete()

    def on_message_complete(self) -> None:
        if not self.ignored:
            self._protocol.on_message_complete()

    def _is_taken(self) -> bool:
        """Whether it is a websocket, or a tunnel, for which there is no other way."""
        websocket: bool = self._protocol._should_upgrade()  # noqa: SLF001 - uvicorn's own parts
        return websocket or self._parser.get_method() == b"CONNECT"

    def head(self) -> bytes:
        """The head that was ignored, without what made it so."""
        self.ignored = False
        version = self._parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self._parser.get_method(), self._protocol.url, version)]
        for name, value in self._protocol.headers:
            if name == b"connection":
                tokens = [token.strip() for token in value.split(b",")]
                kept = b", ".join(token for token in tokens if token.lower() not in _OFFERS)
                lines.append(b"connection: %b" % kept)
            elif name not in _OFFERS:
                lines.append(b"%b: %b" % (name, value))
        return b"\r\n".join([*lines, b"", b""])
