"""Requests for generated text: what OpenAI's API and the V2 `generate` calls accept.

Each `generation` returns what the engine is to do; INVALID_INPUT if that is not possible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from bundle.errors import ErrorCode, MlctlError
from services.generate.engine import GenerationRequest
from services.generate.sampling import TokenSampling
from services.generate.text import TextCodec

# OpenAI's own default of /v1/completions, and what V2 clients get.
_COMPLETION_TOKENS, _V2_TOKENS = 16, 256
_MAX_STOPS = 16
_MAX_LOGPROBS = 20
# Parameters of OpenAI's API that change answers and are not implemented, and the values that change
# nothing.
_UNSUPPORTED: Mapping[str, tuple[object, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "tools": ([],),
    "functions": ([],),
    "suffix": ("",),
    "echo": (False,),
    "modalities": (["text"],),
    "audio": (),
}
_Request = TypeVar("_Request", bound=BaseModel)


class ParameterError(MlctlError):
    """INVALID_INPUT about the request's parameter `param`."""

    def __init__(self, param: str, message: str) -> None:
        self.param = param
        super().__init__(ErrorCode.INVALID_INPUT, message)


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, found: object) -> object:
        """Drop parameters that are null: OpenAI's API takes it for the default."""
        if isinstance(found, dict):
            return {name: value for name, value in found.items() if value is not None}
        return found


class GenerateOptions(_Model):
    """How to continue a prompt; the same for all APIs."""

    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] | None = None
    stop: str | Annotated[list[str], Field(max_length=_MAX_STOPS)] = Field(default_factory=list)
    guided_regex: str | None = None

    def request(
        self,
        tokens: Sequence[int],
        length: int,
        codec: TextCodec,
        form: ResponseFormat | None = None,
        logprobs: int | None = None,
    ) -> GenerationRequest:
        """Return the request to continue `tokens` by at most `length` tokens with these options."""
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        if "" in stop:
            raise ParameterError("stop", "a stop string is empty")
        sampling = TokenSampling(self.temperature, self.top_p, self.top_k, self.seed)
        grammar = None
        if self.guided_regex is not None:
            grammar = codec.grammar("regex", self.guided_regex)
        elif form is not None:
            grammar = form.grammar(codec)
        return GenerationRequest(tuple(tokens), length, sampling, stop, grammar, logprobs)


class _Schema(_Model):
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class ResponseFormat(_Model):
    """The form of an answer: text, any JSON object, or JSON after a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: _Schema | None = None

    def grammar(self, codec: TextCodec) -> str | None:
        """Return the grammar of such answers; None for text."""
        if self.type == "text":
            return None
        if self.type == "json_object":
            return codec.grammar("json_schema", '{"type":"object"}')
        if self.json_schema is None:
            raise ParameterError("response_format.json_schema", "the JSON schema is missing")
        return codec.grammar("json_schema", orjson.dumps(self.json_schema.schema_).decode())


class GenerateStreamOptions(_Model):
    """Options of a streamed answer; with `include_usage` its last event counts the tokens."""

    include_usage: bool = False


class OpenAiRequest(GenerateOptions):
    """What the bodies of OpenAI's API have in common."""

    model: str
    stream: bool = False
    stream_options: GenerateStreamOptions = GenerateStreamOptions()
    response_format: ResponseFormat | None = None

    def generation(self, codec: TextCodec, max_tokens: int) -> GenerationRequest:
        """Return what the engine is to do; a prompt has `max_tokens` with its answer."""
        raise NotImplementedError


class CompletionRequest(OpenAiRequest):
    """The body of /v1/completions. `prompt` is text or tokens."""

    prompt: str | list[str] | list[int]
    logprobs: Annotated[int, Field(ge=0, le=_MAX_LOGPROBS)] | None = None

    def generation(self, codec: TextCodec, max_tokens: int) -> GenerationRequest:  # noqa: ARG002
        prompt = self.prompt
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
            prompt = prompt[0]
        if isinstance(prompt, str):
            tokens = codec.encode(prompt)
        elif any(isinstance(each, str) for each in prompt):
            raise ParameterError("prompt", "several prompts in one request are not supported")
        else:
            tokens = [each for each in prompt if isinstance(each, int)]
            codec.check_tokens(tokens)
        length = self.max_tokens or _COMPLETION_TOKENS
        return self.request(tokens, length, codec, self.response_format, self.logprobs)


class TextPart(_Model):
    """A part of a message's content."""

    type: str
    text: str | None = None


class ChatMessage(_Model):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] = ""

    @property
    def text(self) -> str:
        """The text of all parts."""
        if isinstance(self.content, str):
            return self.content
        for part in self.content:
            if part.type != "text" or part.text is None:
                raise ParameterError(
                    "messages", f"content of the type {part.type!r} is not supported"
                )
        return "".join(part.text or "" for part in self.content)


class ChatRequest(OpenAiRequest):
    """The body of /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=_MAX_LOGPROBS)] = 0

    def generation(self, codec: TextCodec, max_tokens: int) -> GenerationRequest:
        """Without a limit the answer may fill what is left of `max_tokens`."""
        messages = [{"role": each.role, "content": each.text} for each in self.messages]
        tokens = codec.encode(codec.render_chat(messages), special=False)
        length = self.max_completion_tokens or self.max_tokens or max(1, max_tokens - len(tokens))
        logprobs = self.top_logprobs if self.logprobs else None
        return self.request(tokens, length, codec, self.response_format, logprobs)


class V2Options(GenerateOptions):
    """The parameters of V2: greedy unless they have a temperature."""

    temperature: Annotated[float, Field(ge=0, le=100)] = 0.0


class V2Request(_Model):
    """The body of /v2/models/NAME/generate."""

    text_input: str
    parameters: V2Options = V2Options()

    def generation(self, codec: TextCodec, max_tokens: int) -> GenerationRequest:
        """Return what the engine is to do; a prompt has `max_tokens` with its answer."""
        tokens = codec.encode(self.text_input)
        length = self.parameters.max_tokens or max(1, min(_V2_TOKENS, max_tokens - len(tokens)))
        return self.parameters.request(tokens, length, codec)


def parse_request(kind: type[_Request], body: bytes) -> _Request:
    """Return the body as `kind`; ParameterError names the parameter that is wrong."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise MlctlError(ErrorCode.INVALID_INPUT, "the body is not JSON") from None
    if not isinstance(document, dict):
        raise MlctlError(ErrorCode.INVALID_INPUT, "the body is not a JSON object")
    for name, neutral in _UNSUPPORTED.items():
        if document.get(name) is not None and document[name] not in neutral:
            raise ParameterError(name, f"the parameter {name!r} is not supported")
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        param = ".".join(str(part) for part in first["loc"] if isinstance(part, str | int))
        raise ParameterError(param, f"{param}: {first['msg']}") from None
