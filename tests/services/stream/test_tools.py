"""Sending, looking and redriving, on the embedded log and on files."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.stream.base import Message, Outgoing, StreamUrl
from mlctl.services.stream.tools import as_document, as_lines, redrive, send
from mlctl.services.stream.transports import transport_of
from tests.services.stream.contract import read, values


@pytest.fixture(params=["sqlite", "file"])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, StreamUrl]:
    forms = {
        "sqlite": f"sqlite://{tmp_path}/events.db#%s",
        "file": f"file://{tmp_path}/%s.jsonl?headers=yes",
    }
    return {name: StreamUrl.parse(forms[request.param] % name) for name in ("in", "out", "dead")}


def _publish(place: StreamUrl, *messages: Outgoing) -> None:
    with transport_of(place).open_producer(place) as producer:
        producer.publish(messages)


def _redriven(places: dict[str, StreamUrl], stop: threading.Event | None = None) -> int:
    return redrive(places["dead"], places["in"], stop or threading.Event(), lambda _sent: None)


def test_send__lines__have_their_keys(places: dict[str, StreamUrl], tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    rows.write_bytes(b'{"id":7,"a":1}\n\n{"id":"x","a":2}')
    assert send(places["in"], rows, threading.Event(), key="id") == 2
    found = read(places["in"])
    assert values(found) == [b'{"id":7,"a":1}', b'{"id":"x","a":2}']
    assert [message.key for message in found] == [b"7", b"x"]


def test_send__line_without_the_key__is_reported(
    places: dict[str, StreamUrl], tmp_path: Path
) -> None:
    rows = tmp_path / "rows"
    rows.write_bytes(b"[1]\n")
    with pytest.raises(MlctlError, match="not a JSON object with that field"):
        send(places["in"], rows, threading.Event(), key="id")


def test_redrive__dead_letters__are_sent_again_once(places: dict[str, StreamUrl]) -> None:
    ours = (("own", b"1"), ("mlctl-error", b"bad"), ("mlctl-attempts", b"2"))
    _publish(places["dead"], *(Outgoing(b"%d" % n, b"k", ours) for n in range(5)))
    assert _redriven(places) == 5
    assert _redriven(places) == 0
    found = read(places["in"])
    assert values(found) == [b"%d" % n for n in range(5)]
    assert {message.headers for message in found} == {(("own", b"1"), ("mlctl-attempts", b"2"))}
    _publish(places["dead"], Outgoing(b"5"))
    assert _redriven(places) == 1


def test_redrive__tombstone_and_null_header__stay_null(places: dict[str, StreamUrl]) -> None:
    fault = (("mlctl-error", b"bad"),)
    _publish(places["dead"], Outgoing(None, b"gone", (("own", None), *fault)), Outgoing(None))
    assert _redriven(places) == 2
    first, second = read(places["in"])
    assert (first.value, first.key, first.headers) == (None, b"gone", (("own", None),))
    assert (second.value, second.key, second.headers) == (None, None, ())
    assert as_document(first)["value"] is None
    assert list(as_lines(first))[1:] == ["  own: (null)", "  (null)"]


def test_redrive__message_that_fails_again__waits_for_the_next_call(
    places: dict[str, StreamUrl],
) -> None:
    """A consumer that refuses each message at once would keep a redrive busy for ever."""
    _publish(places["dead"], *(Outgoing(b"%d" % n) for n in range(3)))
    if places["dead"].scheme == "file":  # one process writes to a file at a time
        return

    def die(sent: int) -> None:
        assert sent <= 3
        _publish(places["dead"], Outgoing(b"again"))

    assert redrive(places["dead"], places["in"], threading.Event(), die) == 3


def test_redrive__dead_letters_of_another_broker__are_sent_again(
    places: dict[str, StreamUrl], tmp_path: Path
) -> None:
    other = StreamUrl.parse(f"sqlite://{tmp_path}/other.db#in")
    _publish(places["dead"], Outgoing(b"\x00\xff", b"k", (("h", b"1"),)))
    assert redrive(places["dead"], other, threading.Event(), lambda _sent: None) == 1
    (found,) = read(other)
    assert (found.value, found.key, found.headers) == (b"\x00\xff", b"k", (("h", b"1"),))


def test_show__any_bytes__are_printable() -> None:
    message = Message("3", 7, b"\xff" * 2000, b"k", (("why", b"x"), ("raw", b"\xfe")), 1_000)
    assert as_document(message) == {
        "partition": "3",
        "offset": 7,
        "time": "1970-01-01T00:00:01.000+00:00",
        "key": "k",
        "headers": [["why", "x"], ["raw", "0xfe"]],
        "value": "0x" + "ff" * 2000,
    }
    lines = list(as_lines(message))
    assert lines[0] == "3/7  1970-01-01T00:00:01.000+00:00  key=k"
    assert "  why: x" in lines
    assert lines[-1].endswith("... (2002 more characters)")


def test_send__missing_file__is_reported(places: dict[str, StreamUrl], tmp_path: Path) -> None:
    with pytest.raises(MlctlError, match="cannot be read") as caught:
        send(places["in"], tmp_path / "none.jsonl", threading.Event())
    assert caught.value.code is ErrorCode.INVALID_INPUT
