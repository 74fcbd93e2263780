"""A certificate authority for one run of the tests, and what it signed."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import trustme

from mlctl.core.tls import TlsFiles


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files: the CA, a server's pair for this machine, a caller's, and a stranger's."""

    ca: Path
    server: tuple[Path, Path]
    renewed: tuple[Path, Path]
    caller: tuple[Path, Path]
    stranger: tuple[Path, Path]

    def tls(self, *, mutual: bool = False) -> TlsFiles:
        return TlsFiles(*self.server, self.ca if mutual else None)

    def context(self, pair: tuple[Path, Path] | None = None) -> ssl.SSLContext:
        """A client's side, which shows `pair` if it is asked."""
        context = ssl.create_default_context(cafile=self.ca)
        if pair is not None:
            context.load_cert_chain(*pair)
        return context


def issue_certificates(folder: Path) -> Certificates:
    """New ones, their files in `folder`."""
    authority, other = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")

    def issue(ca: trustme.CA, name: str) -> tuple[Path, Path]:
        cert = ca.issue_cert("localhost", "127.0.0.1", common_name=name)
        chain, key = folder / f"{name}.pem", folder / f"{name}.key"
        cert.private_key_pem.write_to_path(key)
        for index, blob in enumerate(cert.cert_chain_pems):
            blob.write_to_path(chain, append=index > 0)
        return chain, key

    return Certificates(
        folder / "ca.pem",
        issue(authority, "server"),
        issue(authority, "renewed"),
        issue(authority, "caller"),
        issue(other, "stranger"),
    )
