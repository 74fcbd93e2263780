"""TLS of Envoy's listener as plain documents; no I/O here.

The certificate is a secret in a file of its own, so that Envoy reads it again whenever the
certificate's file or the key's is replaced by a rename.
"""

from __future__ import annotations

from pathlib import Path

from bundle.tls import TlsFiles
from rollout.drivers.envoy.names import Document

# HTTP/2 first: gRPC needs it.
_ALPN = ("h2", "http/1.1")
# bundle.tls.CIPHERS by their own names: Envoy takes no groups.
_CIPHER_NAMES = tuple(
    f"ECDHE-{key}-{cipher}"
    for key in ("ECDSA", "RSA")
    for cipher in ("AES128-GCM-SHA256", "AES256-GCM-SHA384", "CHACHA20-POLY1305")
)
SECRET_FILE = "certificate.json"  # noqa: S105 - the name of a file
_SECRET = "certificate"  # noqa: S105
_TYPES = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3"


def transport_socket(tls: TlsFiles, secret: Path) -> Document:
    """What the listener's connections begin with; `secret` is the file of `secret_table`."""
    common: Document = {
        "alpn_protocols": list(_ALPN),
        "tls_params": {
            "tls_minimum_protocol_version": "TLSv1_2",
            "tls_maximum_protocol_version": "TLSv1_3",
            "cipher_suites": list(_CIPHER_NAMES),
        },
        "tls_certificate_sds_secret_configs": [
            {
                "name": _SECRET,
                "sds_config": {
                    "path_config_source": {"path": str(secret)},
                    "resource_api_version": "V3",
                },
            }
        ],
    }
    if tls.client_ca is not None:
        common["validation_context"] = {"trusted_ca": {"filename": str(tls.client_ca)}}
    return {
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": f"{_TYPES}.DownstreamTlsContext",
            "common_tls_context": common,
            "require_client_certificate": tls.client_ca is not None,
        },
    }


def secret_table(tls: TlsFiles) -> Document:
    """The file that names the certificate and its key."""
    return {
        "resources": [
            {
                "@type": f"{_TYPES}.Secret",
                "name": _SECRET,
                "tls_certificate": {
                    "certificate_chain": {"filename": str(tls.cert)},
                    "private_key": {"filename": str(tls.key)},
                },
            }
        ]
    }
