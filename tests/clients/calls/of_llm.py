"""openai, LangChain and LiteLLM, against the small language model."""

from __future__ import annotations

import litellm
import openai
from langchain_openai import ChatOpenAI, OpenAI

from tests.clients.report import Calls, Servers

MODEL, CAT, ANSWER = "tiny-llm", "What colour is the cat?", "The cat is red."
# The model's chat template adds no token of its own.
CHAT = f"<s>{CAT}"
MESSAGES = [{"role": "user", "content": CHAT}]
of_openai, langchain, of_litellm = Calls("openai"), Calls("LangChain"), Calls("LiteLLM")


def client(servers: Servers) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://{servers.llm}/v1", api_key="none", max_retries=0)


@of_openai("chat and text completions, models")
def _(servers: Servers) -> None:
    with client(servers) as found:
        assert [each.id for each in found.models.list()] == [MODEL]
        chat = found.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=0)
        assert ANSWER in chat.choices[0].message.content
        assert chat.usage.total_tokens > 0
        text = found.completions.create(model=MODEL, prompt=CAT, max_tokens=40, temperature=0)
        assert ANSWER in text.choices[0].text


@of_openai("streams, with usage")
def _(servers: Servers) -> None:
    with client(servers) as found:
        events = list(
            found.chat.completions.create(
                model=MODEL,
                messages=MESSAGES,
                temperature=0,
                stream=True,
                stream_options={"include_usage": True},
            )
        )
        text = "".join(each.choices[0].delta.content or "" for each in events if each.choices)
        assert ANSWER in text
        assert events[-1].usage.completion_tokens > 0


@of_openai("asyncio")
async def _(servers: Servers) -> None:
    url = f"http://{servers.llm}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as found:
        chat = await found.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=0)
        assert ANSWER in chat.choices[0].message.content


@of_openai("errors as its exceptions")
def _(servers: Servers) -> None:
    with client(servers) as found:
        try:
            found.chat.completions.create(model="other", messages=MESSAGES)
        except openai.NotFoundError as error:
            assert error.body["message"]
        else:
            raise AssertionError("it was accepted")


@of_openai("embeddings", works=False)
def _(servers: Servers) -> None:
    with client(servers) as found:
        try:
            found.embeddings.create(model=MODEL, input="text")
        except openai.NotFoundError:
            return
    raise AssertionError("it was accepted")


@langchain("`ChatOpenAI`: invoke, stream, batch")
def _(servers: Servers) -> None:
    model = ChatOpenAI(
        base_url=f"http://{servers.llm}/v1", api_key="none", model=MODEL, temperature=0
    )
    assert ANSWER in model.invoke(CHAT).content
    assert ANSWER in "".join(piece.content for piece in model.stream(CHAT))
    assert all(ANSWER in each.content for each in model.batch([CHAT, CHAT]))


@langchain("`OpenAI` for text")
def _(servers: Servers) -> None:
    model = OpenAI(
        base_url=f"http://{servers.llm}/v1", api_key="none", model=MODEL, temperature=0,
        max_tokens=40,
    )  # fmt: skip
    assert ANSWER in model.invoke(CAT)


@of_litellm("`completion`, whole and streamed")
def _(servers: Servers) -> None:
    options = {
        "model": f"openai/{MODEL}", "api_base": f"http://{servers.llm}/v1", "api_key": "none",
        "messages": MESSAGES, "temperature": 0,
    }  # fmt: skip
    assert ANSWER in litellm.completion(**options).choices[0].message.content
    pieces = litellm.completion(**options, stream=True)
    text = "".join(each.choices[0].delta.content or "" for each in pieces if each.choices)
    assert ANSWER in text


@of_litellm("`acompletion`")
async def _(servers: Servers) -> None:
    found = await litellm.acompletion(
        model=f"openai/{MODEL}", api_base=f"http://{servers.llm}/v1", api_key="none",
        messages=MESSAGES, temperature=0,
    )  # fmt: skip
    assert ANSWER in found.choices[0].message.content


if __name__ == "__main__":
    for each in (of_openai, langchain, of_litellm):
        each.run()
