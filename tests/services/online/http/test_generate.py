"""Generated text over HTTP, asked with OpenAI's own client and with plain HTTP."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import AsyncMock

import httpx
import numpy as np
import openai
import pytest
from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.clock import Clock
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.generate.decoder import Decoder
from mlctl.services.generate.grammars import Grammar, GrammarProcess
from mlctl.services.generate.text import TextCodec
from mlctl.services.online.http.calls import CLIENT, HttpCall
from mlctl.services.online.http.connection.protocol import infer_protocol
from mlctl.services.online.http.generate import GenerateApp
from mlctl.services.online.http.inference import InferHandler
from mlctl.services.online.models.generator import ServedGenerator
from mlctl.services.online.server.seam import gated
from mlctl.services.online.settings import ServerSettings
from tests.support.clock import ManualClock
from tests.support.listening import listening
from tests.support.tiny_llm import ANSWERS
from tests.support.wait import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.slow
CAT = "What colour is the cat?"
GREEDY: Mapping[str, Any] = {"model": "tiny-llm", "temperature": 0}


class Running(NamedTuple):
    """A server of the small model, its model, and clients of it."""

    model: ServedGenerator
    openai: openai.AsyncOpenAI
    http: httpx.AsyncClient
    registry: CollectorRegistry

    def metric(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, {"model": "tiny-llm", **labels})


Serve = Callable[..., AbstractAsyncContextManager[Running]]


@pytest.fixture
def serve(tiny_llm_bundle: VerifiedBundle) -> Serve:
    """Starts a server with settings."""

    @asynccontextmanager
    async def start(clock: Clock | None = None, **settings: Any) -> AsyncIterator[Running]:
        registry = CollectorRegistry()
        model = ServedGenerator(
            tiny_llm_bundle, ServerSettings(**settings), clock=clock, registry=registry
        )
        await model.start()
        handler = InferHandler(model)
        async with (
            listening(
                gated(GenerateApp(model, handler), handler, model), infer_protocol(handler)
            ) as server,
            openai.AsyncOpenAI(
                base_url=f"{server.url}/v1", api_key="none", max_retries=0
            ) as client,
            httpx.AsyncClient(base_url=server.url, timeout=60) as http,
        ):
            yield Running(model, client, http, registry)
            await model.stop()

    return start


@pytest.fixture
def decoding(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Answers get no token after their first while this is cleared."""
    gate, decode = threading.Event(), Decoder.decode
    gate.set()

    def wait(*args: Any) -> Any:
        assert gate.wait(PATIENCE_SECONDS)
        return decode(*args)

    monkeypatch.setattr(Decoder, "decode", wait)
    return gate


async def test_completions__greedy__is_the_models_answer_with_usage_and_times(serve: Serve) -> None:
    async with serve() as running:
        raw = await running.openai.completions.with_raw_response.create(prompt=CAT, **GREEDY)
        found = raw.parse()

        assert found.choices[0].text == ANSWERS[CAT]
        assert found.choices[0].finish_reason == "stop"
        assert found.usage is not None
        tokens = running.model.codec.encode(CAT + ANSWERS[CAT])
        assert found.usage.total_tokens == len(tokens) + 1  # and the end token
        assert "ttft;dur=" in raw.headers["server-timing"]
        assert running.metric("mlctl_time_to_first_token_seconds_count") == 1
        assert running.metric("mlctl_time_per_output_token_seconds_count") == 1
        assert running.metric("mlctl_generated_tokens_total") == found.usage.completion_tokens
        assert running.metric("mlctl_prompt_tokens_total") == found.usage.prompt_tokens
        assert running.metric("mlctl_requests_total", protocol="http", outcome="ok") == 1


async def test_chat__streamed__pieces_make_the_answer_and_usage_comes_last(serve: Serve) -> None:
    async with serve() as running:
        stream = await running.openai.chat.completions.create(
            messages=[{"role": "user", "content": [{"type": "text", "text": "<s>Count:"}]}],
            stream=True,
            stream_options={"include_usage": True},
            **GREEDY,
        )
        chunks = [chunk async for chunk in stream]

    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == ANSWERS["Count:"]
    assert len(pieces) > 5
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(pieces)


async def test_completions__many_at_once__each_gets_its_own_answer(serve: Serve) -> None:
    async with serve(max_sequences=3) as running:

        async def ask(prompt: str) -> str:
            found = await running.openai.completions.create(prompt=prompt, max_tokens=40, **GREEDY)
            text: str = found.choices[0].text
            return text

        answers = await asyncio.gather(*map(ask, ANSWERS))

    assert answers == list(ANSWERS.values())


async def test_chat__options__bound_the_answer(serve: Serve) -> None:
    async with serve() as running:

        async def ask(**options: Any) -> Any:
            messages: Any = [{"role": "user", "content": "<s>Count:"}]
            found = await running.openai.chat.completions.create(
                messages=messages, **{**GREEDY, **options}
            )
            return found.choices[0]

        short = await ask(max_completion_tokens=2)
        stopped = await ask(stop=[" three"])
        schema = {"type": "array", "items": {"enum": [7]}, "minItems": 2, "maxItems": 2}
        form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
        structured = await ask(response_format=form)
        matched = await ask(extra_body={"guided_regex": "[xy]{4}"})
        drawn = [await ask(temperature=5.0, top_p=0.99, seed=3, max_tokens=8) for _ in range(2)]
        probable = await ask(logprobs=True, top_logprobs=2, max_tokens=1)

    assert short.finish_reason == "length"
    assert stopped.message.content == " one two"
    assert json.loads(structured.message.content) == [7, 7]
    assert set(matched.message.content) <= {"x", "y"}
    assert drawn[0].message.content == drawn[1].message.content
    (token,) = probable.logprobs.content
    assert token.token == token.top_logprobs[0].token
    assert -0.5 < token.logprob <= 0
    assert token.logprob == token.top_logprobs[0].logprob > token.top_logprobs[1].logprob


@pytest.mark.parametrize(
    ("path", "change", "status", "param", "words"),
    [
        ("completions", {"prompt": ""}, 400, "prompt", "the prompt is empty"),
        ("completions", {"prompt": [9999]}, 400, "prompt", "tokens must be from 0 to"),
        ("completions", {"prompt": ["a", "b"]}, 400, "prompt", "several prompts"),
        ("completions", {"prompt": CAT * 60}, 400, "prompt", "context length is 256"),
        ("completions", {"max_tokens": 256}, 400, "prompt", "its answer may have 256"),
        ("completions", {"model": "other"}, 404, "model", "no model 'other'"),
        ("completions", {"prompt": []}, 400, "prompt", "the prompt is empty"),
        ("completions", {"guided_regex": "("}, 400, "guided_regex", "the regex cannot be used"),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": CAT * 60}]},
            400,
            "messages",
            "context length is 256",
        ),
        ("completions", {"n": 2}, 400, "n", "'n' is not supported"),
        ("completions", {"temperature": -1}, 400, "temperature", "greater than or equal to 0"),
        ("completions", {"stop": [""]}, 400, "stop", "a stop string is empty"),
        ("completions", {"logit_bias": {"5": 1}}, 400, "logit_bias", "not supported"),
        ("chat/completions", {"messages": []}, 400, "messages", "at least 1 item"),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            400,
            "messages",
            "content of the type 'image_url' is not supported",
        ),
        (
            "chat/completions",
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": {"type": "thing"}},
                }
            },
            400,
            "response_format.json_schema",
            "the json_schema cannot be used",
        ),
    ],
)
async def test_openai__bad_request__is_rejected_with_an_error_object(
    serve: Serve, path: str, change: dict[str, Any], status: int, param: str | None, words: str
) -> None:
    chat = {"messages": [{"role": "user", "content": "a"}]}
    body = {"model": "tiny-llm", **(chat if path.startswith("chat") else {"prompt": "a"}), **change}
    async with serve() as running:
        found = await running.http.post(f"/v1/{path}", json=body)

    error = found.json()["error"]
    assert (found.status_code, error["param"]) == (status, param)
    assert words in error["message"]
    assert error["type"] == ("not_found_error" if status == 404 else "invalid_request_error")


async def test_openai__wrong_calls__are_rejected(serve: Serve) -> None:
    async with serve(max_body_bytes=1000) as running:
        replies = [
            await running.http.post("/v1/completions", content=b"{"),
            await running.http.get("/v1/completions"),
            await running.http.post("/v1/embeddings", json={}),
            await running.http.get("/v1"),
            await running.http.get("/v1/models/other"),
            await running.http.post(
                "/v1/completions", content=b"{}", headers={"content-type": "a/b"}
            ),
            await running.http.post("/v1/completions", content=b" " * 2000),
        ]
        listed = await running.openai.models.list()
        one = await running.openai.models.retrieve("tiny-llm")

    assert [reply.status_code for reply in replies] == [400, 405, 404, 404, 404, 415, 413]
    errors = [reply.json()["error"] for reply in replies]
    assert errors[3]["message"].startswith("there is no path '/v1'. This API has /v1/chat")
    assert (errors[4]["code"], errors[4]["param"]) == ("model_not_found", "model")
    assert "GET /v1/models lists" in errors[4]["message"]
    assert not any("rows" in each["message"] or "tensor" in each["message"] for each in errors)
    assert [model.id for model in listed.data] == [one.id] == ["tiny-llm"]


async def test_stream__clients_leave__their_slots_are_free(serve: Serve) -> None:
    async with serve(max_sequences=2) as running:

        async def leave() -> None:
            body = {"prompt": "Count:", "max_tokens": 200, "stream": True, "temperature": 5.0}
            body |= {"model": "tiny-llm", "guided_regex": "[a-z ]{190,}"}
            async with running.http.stream("POST", "/v1/completions", json=body) as reply:
                await anext(reply.aiter_lines())

        await asyncio.gather(*(leave() for _ in range(6)))
        await asyncio.to_thread(
            wait_until,
            lambda: running.metric("mlctl_sequences_running") == 0,
            what="all slots are free",
        )
        found = await running.openai.completions.create(prompt=CAT, **GREEDY)
        gone = running.metric("mlctl_requests_total", protocol="http", outcome="gone")

    assert found.choices[0].text == ANSWERS[CAT]
    assert gone == 6


async def test_stream__no_token_for_a_while__comments_keep_the_connection_open(
    serve: Serve, decoding: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlctl.services.online.http.calls.HEARTBEAT_SECONDS", 0.02)
    body = {**GREEDY, "prompt": "Count:", "max_tokens": 40, "stream": True}
    async with serve() as running:
        decoding.clear()
        async with running.http.stream("POST", "/v1/completions", json=body) as reply:
            lines = reply.aiter_lines()
            begun = [await anext(lines)]
            while begun[-1] != ": nothing yet":
                begun.append(await anext(lines))
            decoding.set()
            rest = [line async for line in lines]

    events = [json.loads(line[6:]) for line in (*begun, *rest) if line.startswith("data: {")]
    assert "".join(event["choices"][0]["text"] for event in events) == ANSWERS["Count:"]
    assert "data: [DONE]" in rest


async def test_limit__of_a_client__is_openais_rate_limit_error(
    serve: Serve, tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("shop: the-token-of-the-shop-0123456789")
    headers = {"authorization": "Bearer the-token-of-the-shop-0123456789"}
    body = {"model": "tiny-llm", "prompt": CAT, "max_tokens": 1}
    async with serve(token_file=tokens, max_client_rps=0.001) as running:
        answered = await running.http.post("/v1/completions", json=body, headers=headers)
        rejected = await running.http.post("/v1/completions", json=body, headers=headers)
        counted = [
            running.metric("mlctl_requests_total", protocol="http", outcome=outcome, client="shop")
            for outcome in ("ok", "rate_limit_exceeded")
        ]

    assert (answered.status_code, rejected.status_code, counted) == (200, 429, [1, 1])
    error = rejected.json()["error"]
    assert (error["code"], error["type"]) == ("rate_limit_exceeded", "rate_limit_error")
    assert 990 < int(rejected.headers["retry-after"]) <= 1000


async def test_token__missing__is_the_error_of_openais_api(serve: Serve) -> None:
    async with serve(token=SecretStr("the-token-of-the-shop-0123456789")) as running:
        with pytest.raises(openai.AuthenticationError) as raised:
            await running.openai.completions.create(prompt=CAT, **GREEDY)
        path = "/v2/models/tiny-llm/generate"
        rejected = await running.http.post(path, json={"text_input": CAT})

    error = raised.value
    assert (error.code, error.type) == ("unauthenticated", "authentication_error")
    assert error.response.headers["www-authenticate"] == "Bearer"
    assert rejected.json()["code"] == "unauthenticated"


async def test_queue__full__is_429_of_openais_api_and_503_of_v2_with_retry_after(
    serve: Serve, decoding: threading.Event
) -> None:
    body = {"model": "tiny-llm", "prompt": CAT}
    async with serve(max_sequences=1, max_queue_rows=1) as running:
        decoding.clear()

        async def ask(after: int) -> httpx.Response:
            await asyncio.to_thread(wait_until, lambda: running.model.open_requests == after)
            return await running.http.post("/v1/completions", json=body)

        open_tasks = [asyncio.create_task(ask(number)) for number in range(2)]
        rejected = await ask(2)
        with pytest.raises(openai.RateLimitError):
            await running.openai.completions.create(prompt=CAT, **GREEDY)
        v2 = await running.http.post("/v2/models/tiny-llm/generate", json={"text_input": CAT})
        decoding.set()
        answered = [await task for task in open_tasks]

    assert [reply.status_code for reply in answered] == [200, 200]
    assert (rejected.status_code, v2.status_code) == (429, 503)
    error = rejected.json()["error"]
    assert (error["code"], error["type"]) == ("queue_full", "rate_limit_error")
    assert v2.json()["code"] == "queue_full"
    assert all(int(reply.headers["retry-after"]) >= 1 for reply in (rejected, v2))


async def test_deadline__no_first_token_in_time__is_rejected_and_a_begun_answer_is_not(
    serve: Serve, decoding: threading.Event
) -> None:
    clock = ManualClock()
    async with serve(clock, max_sequences=1) as running:
        decoding.clear()
        begun = await running.openai.completions.create(prompt="Count:", stream=True, **GREEDY)
        pieces = [(await anext(aiter(begun))).choices[0].text]
        late = asyncio.create_task(
            running.http.post("/v1/completions", json={"model": "tiny-llm", "prompt": CAT})
        )
        await asyncio.to_thread(wait_until, lambda: running.model.open_requests == 2)
        clock.advance(31)
        decoding.set()
        pieces += [chunk.choices[0].text async for chunk in begun]

    assert (await late).status_code == 504
    assert "".join(pieces) == ANSWERS["Count:"]


async def test_stop__answers_are_open__they_are_finished(serve: Serve) -> None:
    async with serve() as running:
        stream = await running.openai.completions.create(
            prompt="Count:", max_tokens=40, stream=True, **GREEDY
        )
        pieces = [(await anext(aiter(stream))).choices[0].text]
        stopping = asyncio.create_task(running.model.stop())
        pieces += [chunk.choices[0].text async for chunk in stream]
        await stopping

    assert "".join(pieces) == ANSWERS["Count:"]


@pytest.mark.parametrize("version", ["", "/versions/{digest}"])
async def test_v2_generate__whole_and_streamed__is_the_models_answer(
    serve: Serve, version: str
) -> None:
    async with serve() as running:
        root = f"/v2/models/tiny-llm{version.format(digest=running.model.digest)}"
        whole = await running.http.post(f"{root}/generate", json={"text_input": CAT})
        body = {"text_input": "Count:", "parameters": {"max_tokens": 3}}
        streamed = await running.http.post(f"{root}/generate_stream", json=body)
        bad = await running.http.post(f"{root}/generate", json={"text_input": 5})

    assert whole.json()["text_output"] == ANSWERS[CAT]
    assert whole.json()["model_version"] == running.model.digest
    events = [
        json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")
    ]
    assert ANSWERS["Count:"].startswith("".join(event["text_output"] for event in events))
    assert len(events) == 3
    assert bad.status_code == 400
    assert bad.json()["code"] == "invalid_input"


async def test_schema__takes_long_to_compile__other_requests_are_answered_meanwhile(
    serve: Serve,
) -> None:
    schema = {"type": "integer", "multipleOf": 1000003}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    body = {"model": "tiny-llm", "prompt": "a", "response_format": form}
    async with serve() as running:
        slow = asyncio.create_task(running.http.post("/v1/completions", json=body))
        others = [await running.http.get("/v1/models") for _ in range(10)]
        answered = [await running.openai.completions.create(prompt=CAT, **GREEDY)]
        waits = not slow.done()
        rejected = await slow
        again = await running.http.post("/v1/completions", json=body)

    assert waits
    assert {reply.status_code for reply in others} == {200}
    assert answered[0].choices[0].text == ANSWERS[CAT]
    assert "too complex" in rejected.text, rejected.text
    assert rejected.status_code == again.status_code == 400
    assert "the json_schema cannot be used: it is too complex" in rejected.text
    assert again.text == rejected.text  # from the cache


async def test_schemas__many_that_are_slow__one_that_is_not_does_not_wait_for_them(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[float] = []
    check = GrammarProcess.check

    def note(process: GrammarProcess, grammar: Grammar, seconds: float) -> bool:
        checked.append(seconds)
        return check(process, grammar, seconds)

    monkeypatch.setattr(GrammarProcess, "check", note)

    def ask(schema: dict[str, Any]) -> dict[str, Any]:
        form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
        return {"model": "tiny-llm", "prompt": "a", "max_tokens": 2, "response_format": form}

    async with serve() as running:
        slow = [
            asyncio.create_task(
                running.http.post(
                    "/v1/completions",
                    json=ask({"type": "integer", "multipleOf": 1_000_003 + n}),
                    headers={"x-forwarded-for": f"192.0.2.{n}"},
                )
            )
            for n in range(6)
        ]
        await running.http.get("/v1/models")
        quick = await running.http.post("/v1/completions", json=ask({"type": "boolean"}))
        waiting = sum(not each.done() for each in slow)
        for each in slow[1:]:
            each.cancel()
        found = await slow[0]
        last = ask({"type": "integer", "multipleOf": 1_000_003 + 99})
        late = await running.http.post("/v1/completions", json=last)

    assert quick.status_code == 200
    assert waiting >= 5
    assert (found.status_code, late.status_code) == (400, 400)
    # Of those that were abandoned only one may have begun.
    assert checked.count(max(checked)) <= 3


@pytest.mark.parametrize(
    ("client", "address", "origin"),
    [
        ("", "192.0.2.1", "192.0.2.1"),
        ("", "2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("", "::ffff:192.0.2.1", "192.0.2.1"),
        ("", "192.0.2.1:80", "192.0.2.1:80"),
        ("", "", ""),
        ("app", "192.0.2.1", "app"),
    ],
)
async def test_origin__token_else_address__a_host_is_one_client(
    client: str, address: str, origin: str
) -> None:
    scope = {"headers": [], "path": "/", CLIENT: client, "client": (address, 5)}
    assert HttpCall(scope, AsyncMock(), AsyncMock()).origin == origin


async def test_queue__one_client_fills_it__another_takes_the_place_of_its_last(
    serve: Serve, decoding: threading.Event
) -> None:
    def ask(running: Running, client: str) -> asyncio.Task[httpx.Response]:
        return asyncio.create_task(
            running.http.post(
                "/v1/completions",
                json={"model": "tiny-llm", "prompt": CAT, "max_tokens": 4},
                headers={"x-forwarded-for": client},
            )
        )

    async with serve(max_sequences=1, max_queue_rows=3) as running:
        decoding.clear()
        greedy = [ask(running, "192.0.2.1") for _ in range(4)]
        await asyncio.to_thread(wait_until, lambda: running.model.open_requests == 4)
        other = ask(running, "192.0.2.2")
        done, _ = await asyncio.wait(greedy, return_when=asyncio.FIRST_COMPLETED)
        decoding.set()
        answered = await other
        await asyncio.gather(*greedy)

    assert [each.result().status_code for each in done] == [429]
    assert answered.status_code == 200
    assert sorted(each.result().status_code for each in greedy) == [200, 200, 200, 429]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"model": "tiny-llm", "prompt": "a" * 10_000_000}),
        (
            "/v1/chat/completions",
            {"model": "tiny-llm", "messages": [{"role": "user", "content": "x"}] * 10_000},
        ),
        ("/v2/models/tiny-llm/generate", {"text_input": "a" * 10_000_000}),
    ],
    ids=["completion", "chat", "generate"],
)
async def test_prompt__cannot_fit__is_rejected_by_its_length_and_never_tokenized(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    async with serve() as running:
        with monkeypatch.context() as patch:
            patch.setattr(TextCodec, "encode", lambda *_, **__: pytest.fail("it is tokenized"))
            found = await running.http.post(path, json=body)
            with pytest.raises(MlctlError, match="context length is 256 tokens"):
                await running.model.infer({"prompt": np.array([b"a" * 100_000], dtype=object)})

    if path.startswith("/v1"):
        error = found.json()["error"]
        assert (found.status_code, error["code"]) == (400, "context_length_exceeded")
    else:
        assert (found.status_code, found.json()["code"]) == (413, "payload_too_large")


async def test_prompt__long_and_within_the_limit__is_tokenized_off_the_loop(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, encode = set(), TextCodec.encode

    def note(*args: Any, **options: Any) -> list[int]:
        threads.add(threading.current_thread())
        return encode(*args, **options)

    monkeypatch.setattr(TextCodec, "encode", note)
    monkeypatch.setattr("mlctl.services.online.batching.preparation.SHORT_BYTES", 100)
    async with serve() as running:
        found = await running.http.post(
            "/v2/models/tiny-llm/generate", json={"text_input": CAT * 5, "max_tokens": 1}
        )
        await running.model.infer({"prompt": np.array([CAT.encode() * 5], dtype=object)})

    assert found.status_code == 200
    assert threading.main_thread() not in threads


async def test_logprobs__tokens_inside_a_character__have_their_bytes_and_offsets(
    serve: Serve,
) -> None:
    options: dict[str, Any] = {
        "max_tokens": 4,
        "logprobs": 20,
        "extra_body": {"guided_regex": "x\u6f22"},
    }
    async with serve() as running:
        found = await running.openai.completions.create(prompt=CAT, **GREEDY, **options)
        chat = await running.http.post(
            "/v1/chat/completions",
            json={
                **GREEDY,
                "messages": [{"role": "user", "content": CAT}],
                "max_tokens": 4,
                "logprobs": True,
                "guided_regex": "x\u6f22",
            },
        )

    listed = found.choices[0].logprobs
    assert listed is not None
    assert found.choices[0].text == "x\u6f22"
    assert listed.tokens == ["x", "bytes:\\xe6", "bytes:\\xbc", "bytes:\\xa2"]
    assert listed.text_offset == [0, 1, 1, 1]
    assert listed.top_logprobs is not None
    assert [len(each) for each in listed.top_logprobs] == [20] * 4
    content = chat.json()["choices"][0]["logprobs"]["content"]
    assert [each["bytes"] for each in content] == [[0x78], [0xE6], [0xBC], [0xA2]]


async def test_v2_generate__parameters_of_tensorrt_llm__are_heard(serve: Serve) -> None:
    body = {"id": "7", "text_input": "Count:", "max_tokens": 2, "bad_words": "", "stream": False}
    async with serve() as running:
        found = await running.http.post("/v2/models/tiny-llm/generate", json=body)
        wrong = await running.http.post(
            "/v2/models/tiny-llm/generate", json={**body, "stream": True}
        )

    assert (found.json()["text_output"], found.json()["id"]) == (" one two", "7")
    assert wrong.status_code == 400


async def test_infer__prompts_as_a_tensor__are_answered_whole_and_in_pieces(serve: Serve) -> None:
    """What V2 infer, `/predict` and gRPC's ModelInfer and ModelStreamInfer call."""
    prompts = np.array([b"Count:", CAT.encode()], dtype=object)
    async with serve() as running:
        whole = await running.model.infer({"prompt": prompts})
        stream = running.model.stream({"prompt": prompts[:1]})
        pieces = [piece.outputs["text"][0] async for piece in stream]
        for wrong in (prompts, np.array([b"\xff"], dtype=object), np.zeros(1)):
            with pytest.raises(MlctlError) as caught:
                running.model.stream({"prompt": wrong})
            assert caught.value.code is ErrorCode.INVALID_INPUT

    assert [text.decode() for text in whole.outputs["text"]] == [ANSWERS["Count:"], ANSWERS[CAT]]
    assert b"".join(pieces).decode() == ANSWERS["Count:"]
    assert len(pieces) > 5
