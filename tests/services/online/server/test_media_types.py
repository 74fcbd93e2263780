"""`/predict` is BentoML's: what its other media types could do must not be possible here."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest

from tests.support.serving import Server

pytestmark = pytest.mark.slow


class _Touch:
    """What creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.path,)


@pytest.fixture
def bait() -> Iterator[tuple[str, list[str]]]:
    """The URL of a server that nobody should ask, and who did."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as listener:
        thread = threading.Thread(target=listener.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{listener.server_port}/bait", asked
        listener.shutdown()
        thread.join()


@pytest.mark.parametrize("path", ["/predict", "/v2/models/tiny/infer"])
@pytest.mark.parametrize(
    "kind", ["application/vnd.bentoml+pickle", "application/octet-stream", "application/x-pickle"]
)
def test_media_types__pickle__is_never_loaded(
    server: Server, tmp_path: Path, path: str, kind: str
) -> None:
    content = pickle.dumps({"x": _Touch(tmp_path / "loaded")})
    answer = httpx.post(server.url + path, content=content, headers={"content-type": kind})
    assert 400 <= answer.status_code < 500, answer.text
    assert not (tmp_path / "loaded").exists()


def test_media_types__url_as_input__is_never_requested(
    server: Server, bait: tuple[str, list[str]]
) -> None:
    url, asked = bait
    answers = [
        httpx.post(f"{server.url}/predict", json={"x": url}),
        httpx.post(f"{server.url}/predict", data={"x": url}),
        httpx.post(f"{server.url}/predict", files={"x": (None, url)}),
        httpx.post(f"{server.url}/predict", files={"x": ("x.url", url)}),
        httpx.post(f"{server.url}/predict", content=url, headers={"content-type": "text/uri-list"}),
    ]
    assert all(400 <= answer.status_code < 500 for answer in answers), answers
    assert httpx.get(url).status_code == 200  # it would have been heard
    assert asked == ["/bait"]


def test_media_types__hostile_form__is_rejected_in_time(server: Server) -> None:
    boundary = "-" * 30_000
    for body in (boundary.encode() * 3, b"\r\n" * 40_000, b"--" + boundary.encode() + b"\r\n" * 9):
        answer = httpx.post(
            f"{server.url}/predict",
            content=body,
            headers={"content-type": f"multipart/form-data; boundary={boundary[:60]}"},
            timeout=10,
        )
        assert 400 <= answer.status_code < 500
