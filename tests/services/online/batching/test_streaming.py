"""Answers in pieces over both ways of HTTP, and what becomes of them when nobody reads."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.online.batching.streaming import ROOM, AnswerStream
from mlctl.services.online.models.served_model import ServedModel
from mlctl.services.online.settings import ServerSettings
from mlctl.services.protocol.priority import Priority
from tests.services.online.http.test_app import REQUEST, Client, counted, open_client
from tests.support.listening import until
from tests.support.streams import code_of, counting_row, make_stream_bundle

STREAM = "/v2/models/tiny/infer_stream"
ENDLESS = 1_000_000
Use = Callable[[Client, ServedModel, ModuleType], Awaitable[None]]
Ask = Callable[[Use], CollectorRegistry]


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> VerifiedBundle:
    return make_stream_bundle(tmp_path_factory.mktemp("stream") / "bundle")


@pytest.fixture(params=["asgi", "http"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def ask(counting: VerifiedBundle, way: str) -> Ask:
    """Runs its argument against a started host, with the code of the host's transform."""

    def run(use: Use) -> CollectorRegistry:
        registry = CollectorRegistry()

        async def main() -> None:
            host = ServedModel(counting, ServerSettings(deadline_ms=20_000), registry=registry)
            await host.start()
            code = code_of(counting)
            for record in (code.made, code.closed, code.gates):
                record.clear()
            async with open_client(host, way) as client, asyncio.timeout(60):
                await use(client, host, code)
            await host.stop()

        asyncio.run(main())
        return registry

    return run


def rows(*pieces: int) -> dict[str, np.ndarray]:
    return {"x": np.array([counting_row(count) for count in pieces], np.float32)}


def body(*pieces: int, **fields: Any) -> dict[str, Any]:
    data = [counting_row(count) for count in pieces]
    tensor = {"name": "x", "datatype": "FP32", "shape": [len(data), 4], "data": data}
    return {"inputs": [tensor], **fields}


def events(text: str) -> Iterator[tuple[str, Any]]:
    """The name (message, if it has none) and the document of each event."""
    for block in text.split("\n\n")[:-1]:
        *name, data = block.split("\n")
        yield name[0].removeprefix("event: ") if name else "message", json.loads(data[6:])


def step_data(document: dict[str, Any]) -> Any:
    (step,) = [output for output in document["outputs"] if output["name"] == "step"]
    return step["shape"], step["data"]


def test_stream__parts__are_events_with_an_end(ask: Ask) -> None:
    async def use(client: Client, host: ServedModel, code: ModuleType) -> None:
        for path in (STREAM, f"/v2/models/tiny/versions/{host.digest}/generate_stream"):
            answer = await client.post(path, json=body(3, 3, id="mine"))
            assert answer.status_code == 200
            assert answer.headers["content-type"] == "text/event-stream"
            assert answer.headers["cache-control"] == "no-cache"
            *pieces, (name, final) = events(answer.text)
            assert [step_data(piece) for _, piece in pieces] == [
                ([2, 1], [step, step]) for step in range(3)
            ]
            assert {event for event, _ in pieces} == {"message"}
            assert name == "end"
            assert final["parameters"] == {"triton_final_response": True}
            assert [document["id"] for _, document in [*pieces, (name, final)]] == ["mine"] * 4
        await until(lambda: code.closed == [3, 3])

    registry = ask(use)
    assert counted(registry, "ok") == 2
    assert registry.get_sample_value("mlctl_first_piece_seconds_count", {"model": "tiny"}) == 2


def test_stream__priority__comes_from_header_or_body(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    lanes: list[Priority] = []

    async def use(client: Client, host: ServedModel, _code: ModuleType) -> None:
        stream_of = host.stream

        def noted(inputs: Any, timeout: float | None, priority: Priority) -> AnswerStream:
            lanes.append(priority)
            return stream_of(inputs, timeout, priority)

        monkeypatch.setattr(host, "stream", noted)
        high = body(1, parameters={"priority": "high"})
        for asked, named in ((body(1), {}), (high, {}), (high, {"mlctl-priority": "normal"})):
            assert (await client.post(STREAM, json=asked, headers=named)).status_code == 200

    ask(use)
    assert lanes == [Priority.NORMAL, Priority.HIGH, Priority.NORMAL]


@pytest.mark.parametrize("way", ["http"])  # the application alone answers no infer requests
def test_infer__model_that_yields__joins_the_parts(ask: Ask) -> None:
    async def use(client: Client, _host: ServedModel, _code: ModuleType) -> None:
        answer = (await client.post("/v2/models/tiny/infer", json=body(3, 3))).json()
        assert step_data(answer) == ([2, 3], [0, 1, 2, 0, 1, 2])
        assert answer["outputs"][1]["data"] == [0, 0]  # does not grow: the last piece's

    ask(use)


async def test_stream__model_does_not_yield__has_one_part(bundle: VerifiedBundle, way: str) -> None:
    host = ServedModel(bundle, ServerSettings(), registry=CollectorRegistry())
    await host.start()
    async with open_client(host, way) as client:
        answer = await client.post(STREAM, json=REQUEST)
        (_, piece), (end, _) = events(answer.text)
        assert (piece["outputs"][0]["data"], end) == ([12, 14, 16, 18], "end")
    await host.stop()


@pytest.mark.parametrize(
    ("document", "status", "code"),
    [
        ({"inputs": []}, 400, "invalid_input"),
        (body(1, outputs=[{"name": "other"}]), 400, "invalid_input"),
        (body(1, parameters={"binary_data_output": True}), 400, "invalid_input"),
        (body(0), 500, "internal"),  # nothing is yielded
    ],
)
def test_stream__fails_before_the_first_part__has_its_status(
    ask: Ask, document: Any, status: int, code: str
) -> None:
    async def use(client: Client, _host: ServedModel, _code: ModuleType) -> None:
        answer = await client.post(STREAM, json=document)
        assert (answer.status_code, answer.json()["code"]) == (status, code)
        assert (await client.get(STREAM)).status_code == 405

    ask(use)


def test_stream__expect_continue_is_rejected__closes_the_connection(ask: Ask) -> None:
    """It may not send the body any more, for which its next request would be taken."""

    async def use(client: Client, _host: ServedModel, _code: ModuleType) -> None:
        headers = {"Expect": "100-continue", "Content-Type": "text/html"}
        refused = await client.post(STREAM, content=b"{}", headers=headers)
        assert (refused.status_code, refused.headers["connection"]) == (415, "close")

    ask(use)


def test_stream__fails_later__is_an_event_without_internals(ask: Ask) -> None:
    async def use(client: Client, _host: ServedModel, code: ModuleType) -> None:
        *pieces, (name, error) = events((await client.post(STREAM, json=body(100))).text)
        assert (len(pieces), name, error["code"]) == (70, "error", "internal")
        assert "secret" not in json.dumps(error)
        assert code.closed == [100]

    assert counted(ask(use), "internal") == 1


@pytest.mark.parametrize("way", ["http"])  # the other client reads all of it before it tells
def test_stream__client_disconnects__work_ends(ask: Ask) -> None:
    async def use(client: Client, host: ServedModel, code: ModuleType) -> None:
        gate = threading.Semaphore(5)
        code.gates.append(_Taking(gate))
        async with client.stream("POST", STREAM, json=body(60)) as answer:
            lines = answer.aiter_lines()
            assert json.loads((await anext(lines))[6:])["outputs"]
        # Each piece that is allowed now meets a connection that is closed.
        while not code.closed:
            gate.release()
            await asyncio.sleep(0.01)
        assert len(code.made) < 60
        made = len(code.made)
        code.gates.clear()
        await host.infer(rows(1), 20)
        assert len(code.made) == made + 1  # only by the last request

    assert counted(ask(use), "gone") == 1


class _Taking:
    """Waits for one of a semaphore's permits."""

    def __init__(self, permits: threading.Semaphore) -> None:
        self._permits = permits

    def wait(self, timeout: float) -> bool:
        return self._permits.acquire(timeout=timeout)


@pytest.mark.parametrize("way", ["asgi"])
def test_stream__parts_are_not_read__production_stops(ask: Ask) -> None:
    async def use(_client: Client, host: ServedModel, code: ModuleType) -> None:
        with_reader, without = host.stream(rows(60)), host.stream(rows(61))
        found = [piece.outputs["step"].item() async for piece in with_reader]
        assert found == list(range(60))
        assert len(code.made) == 60 + ROOM
        assert (await anext(without)).outputs["step"].item() == 0
        await until(lambda: len(code.made) == 60 + ROOM + 1)
        without.close()
        await until(lambda: code.closed == [60, 61])

    ask(use)


@pytest.mark.parametrize("way", ["asgi"])
def test_stream__deadline_or_stop__ends_it(ask: Ask) -> None:
    async def use(_client: Client, host: ServedModel, code: ModuleType) -> None:
        unread = host.stream(rows(60), 0.05)
        await until(lambda: code.closed == [60])
        assert [(await anext(unread)).outputs["step"].item() for _ in range(ROOM)] == [0, 1]
        with pytest.raises(MlctlError) as caught:
            await anext(unread)
        assert caught.value.code is ErrorCode.DEADLINE_EXCEEDED
        endless = host.stream(rows(ENDLESS), 0.2)
        ending = asyncio.ensure_future(host.stop())
        with pytest.raises(MlctlError) as caught:
            async for _ in endless:
                pass
        assert caught.value.code is ErrorCode.DEADLINE_EXCEEDED
        await ending

    ask(use)


async def test_stream__above_the_limit__is_rejected(counting: VerifiedBundle) -> None:
    host = ServedModel(counting, ServerSettings(), registry=CollectorRegistry())
    await host.start()
    opened = [host.stream(rows(60)) for _ in range(64)]
    with pytest.raises(MlctlError, match="64 streams are open") as caught:
        host.stream(rows(60))
    assert caught.value.code is ErrorCode.QUEUE_FULL
    for stream in opened:
        stream.close()
    assert (await host.infer(rows(2))).outputs["step"].shape == (1, 2)
    await host.stop()


def test_stream__no_part_for_a_while__sends_a_heartbeat(
    ask: Ask, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlctl.services.online.http.calls.HEARTBEAT_SECONDS", 0.02)

    async def use(client: Client, _host: ServedModel, code: ModuleType) -> None:
        gate = threading.Event()
        code.gates.append(gate)
        if way == "asgi":  # this client waits for all of the answer
            asyncio.get_running_loop().call_later(0.2, gate.set)
            text = (await client.post(STREAM, json=body(1))).text
            assert text.startswith(": nothing yet\n\n")
            return
        async with client.stream("POST", STREAM, json=body(1)) as answer:
            lines = answer.aiter_lines()
            assert await anext(lines) == ": nothing yet"
            gate.set()
            assert "event: end" in [line async for line in lines]

    ask(use)
