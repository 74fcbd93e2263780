"""Who may use the page: this user's browser on this machine, and no other site that it has open.

The command prints a token in the fragment of the URL, which browsers send to no server. A script
exchanges it for a cookie that other sites cannot send (`SameSite=Strict`), and commands also need a
header with a value that only the page itself knows. The `Host` header is checked as well, so that
a name that an attacker points to 127.0.0.1 does not reach the page.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response

from mlctl.core.errors import ErrorCode, MlctlError

HOSTS = ("127.0.0.1", "localhost")
CSRF_HEADER = "x-csrf-token"

HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
"""The headers of every response: scripts and styles come from this server only."""


def _secret() -> str:
    return secrets.token_urlsafe(32)


@dataclass(frozen=True, slots=True)
class PageAccess:
    """The secrets of one server, which end with it. `port` keeps the cookies of two apart."""

    port: int
    token: str = field(default_factory=_secret, repr=False)
    session: str = field(default_factory=_secret, repr=False)
    csrf: str = field(default_factory=_secret, repr=False)

    @property
    def cookie(self) -> str:
        return f"mlctl-ui-{self.port}"

    def granted(self, request: Request) -> bool:
        """Return whether the request has the session's cookie."""
        return _same(request.cookies.get(self.cookie, ""), self.session)

    def require(self, request: Request) -> None:
        """UNAUTHENTICATED without the session's cookie."""
        if not self.granted(request):
            raise MlctlError(
                ErrorCode.UNAUTHENTICATED,
                "this browser has no session",
                "Open the address that `mlctl ui` printed.",
            )

    def require_command(self, request: Request) -> None:
        """UNAUTHENTICATED as `require`; NOT_PERMITTED for a request that the page did not send."""
        self.require(request)
        if not _same(request.headers.get(CSRF_HEADER, ""), self.csrf):
            raise MlctlError(ErrorCode.NOT_PERMITTED, "commands are taken from the page only")

    def open_session(self, request: Request) -> Response:
        """Return the response with the session's cookie; UNAUTHENTICATED for a wrong token."""
        if not _same(request.headers.get("authorization", ""), f"Bearer {self.token}"):
            raise MlctlError(ErrorCode.UNAUTHENTICATED, "the token of the address is wrong")
        response = Response(status_code=204, headers=HEADERS)
        response.set_cookie(self.cookie, self.session, httponly=True, samesite="strict")
        return response


def _same(found: str, expected: str) -> bool:
    return hmac.compare_digest(found.encode(), expected.encode())
