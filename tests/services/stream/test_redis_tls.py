"""`rediss://` to a real Redis behind TLS: answered whole, and told what is wrong with TLS."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.stream.base import ConnectionRequest, Guarantee, StreamUrl
from mlctl.services.stream.transports import transport_of
from tests.services.precomputed.servers import redis_server
from tests.services.stream.contract import answer, numbered, numbers, read, send, take
from tests.support.certificates import issue_certificates
from tests.support.tls_front import tls_front

pytestmark = pytest.mark.slow


def test_redis__mutual_tls__carries_the_stream(tmp_path: Path) -> None:
    made = issue_certificates(tmp_path)
    with redis_server(tmp_path) as server, tls_front(server.port, made) as port:
        address = f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={made.ca}"
        cert, key = made.caller
        ours = StreamUrl.parse(f"{address}&ssl_certfile={cert}&ssl_keyfile={key}#in")
        answers = ours.with_topic("out")
        send(ours, numbered(0, 20))
        with transport_of(ours).open_connection(ConnectionRequest(ours, "g", answers)) as link:
            assert link.guarantee is Guarantee.EXACTLY_ONCE
            answer(link, take(link, 20))
        assert numbers(read(answers)) == [*range(20)]
        for place, told in (
            (f"{address}#in", "does not answer"),  # It has no certificate.
            (f"rediss://127.0.0.1:{port}/0#in", "is not accepted: .*certificate"),
        ):
            with pytest.raises(MlctlError, match=told) as caught:
                send(StreamUrl.parse(place), [])
            assert caught.value.code is ErrorCode.BROKER_UNAVAILABLE


def test_redis_url__useless_options__are_named(tmp_path: Path) -> None:
    made = issue_certificates(tmp_path)
    for place, told in (
        (f"redis://127.0.0.1:9/0?ssl_ca_certs={made.ca}#x", "does not use TLS, so ssl_ca_certs"),
        ("rediss://127.0.0.1:9/0?ssl_ca_certs=/nowhere#x", "cannot be used: No such file"),
        (f"rediss://127.0.0.1:9/0?ssl_ca_certs={made.server[1]}#x", "cannot be used"),
        (f"rediss://127.0.0.1:9/0?ssl_keyfile={made.caller[1]}#x", "cannot be used"),
    ):
        with pytest.raises(MlctlError, match=told) as caught:
            send(StreamUrl.parse(place), [])
        assert caught.value.code is ErrorCode.INVALID_INPUT
