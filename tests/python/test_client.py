"""The client of any served model: what it sends for the values that people have."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest

from mlctl import Client
from mlctl.core.errors import ErrorCode, MlctlError

NAN = float("nan")


class Recorder(BaseHTTPRequestHandler):
    """A server of a model with the inputs `x` and `t`; it records what it is sent."""

    sent: ClassVar[list[Any]] = []

    def do_GET(self) -> None:
        inputs = [{"name": "x", "datatype": "INT64"}, {"name": "t", "datatype": "BYTES"}]
        self._answer({"inputs": inputs})

    def do_POST(self) -> None:
        self.sent.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        self._answer({"outputs": []})

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Print nothing."""

    def _answer(self, document: object) -> None:
        content = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def client() -> Iterator[Client]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Recorder)
    thread = Thread(target=server.serve_forever)
    thread.start()
    Recorder.sent.clear()
    try:
        with Client(f"http://127.0.0.1:{server.server_port}") as found:
            yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("value", "shape", "data"),
    [
        ([1, 2], [2], [1, 2]),
        ([1.9, True, 2**70], [3], [1.9, True, 2**70]),
        (np.array([[1.5, NAN]]), [1, 2], [1.5, None]),
        ([None, NAN, pd.NA, pd.NaT, 7], [5], [None, None, None, None, 7]),
        (pd.Series([1, None], dtype="Int64"), [2], [1, None]),
        (pd.Series(["a", None]), [2], ["a", None]),
        ([1, "a", b"b"], [3], [1, "a", "b"]),
        ([np.float32(0.5), np.int64(3)], [2], [0.5, 3]),
        (np.array(["a"]), [1], ["a"]),
        (7, [], [7]),
    ],
)
def test_infer__values_of_people__are_sent_unchanged_and_gaps_as_null(
    client: Client, value: Any, shape: list[int], data: list[object]
) -> None:
    """The server rejects what its datatypes cannot represent: nothing is converted for it."""
    client.infer("m", {"x": value})
    sent = {"name": "x", "datatype": "INT64", "shape": shape, "data": data}
    assert json.dumps(Recorder.sent) == json.dumps([{"inputs": [sent]}])


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ([[1, 2], [3]], "its rows have different lengths"),
        ([float("inf")], "inf cannot be sent as JSON"),
        (np.array([-np.inf]), "-inf cannot be sent as JSON"),
        ([b"\xff"], "can't decode byte"),
        ([pd.Timestamp(0)], "cannot be sent as JSON"),
        ([{"a": 1}], "cannot be sent as JSON"),
    ],
)
def test_infer__value_that_json_does_not_have__is_rejected(
    client: Client, value: Any, told: str
) -> None:
    with pytest.raises(MlctlError, match=f"input 't': .*{told}") as caught:
        client.infer("m", {"t": value})
    assert caught.value.code is ErrorCode.INVALID_INPUT
    assert Recorder.sent == []
