from __future__ import annotations

from services.online.http.connection.protocol import infer_protocol
from tests.services.online.http.connection.conftest import Bench
from tests.services.online.http.connection.lines import Line
from tests.services.online.http.connection.test_repeat import ONE


def test_memory__head_with_a_token__stays_on_its_connection(bench: Bench) -> None:
    async def main() -> None:
        base = infer_protocol(bench.inference)
        secret = ONE.replace(b"\r\n\r\n", b"\r\nAuthorization: Bearer secret\r\n\r\n", 1)
        for content, kept in ((secret, 0), (ONE, 1)):
            line = Line(bench, base=base)
            for _ in range(2):
                line.protocol.data_received(content)
                await line.answer()
            assert len(line.protocol.memory._kept) == kept
            line.protocol.data_received(content)
            assert line.repeated()
            await line.answer()
            line.end()

    bench.runner.run(main())
