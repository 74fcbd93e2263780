"""Requests for generated text: what OpenAI's API and the V2 `generate` calls accept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

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


class GenerateOptions(_Model):
    """How to continue a prompt; the same for all APIs."""

    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] | None = None
    stop: str | Annotated[list[str], Field(max_length=_MAX_STOPS)] | None = None
    guided_regex: str | None = None


class _Schema(_Model):
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class ResponseFormat(_Model):
    """The form of an answer: text, any JSON object, or JSON after a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: _Schema | None = None


class StreamOptions(_Model):
    """Options of a streamed answer."""

    include_usage: bool = False


class _OpenAiRequest(GenerateOptions):
    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None


class CompletionRequest(_OpenAiRequest):
    """The body of /v1/completions. `prompt` is text or tokens."""

    prompt: str | list[str] | list[int]
    logprobs: Annotated[int, Field(ge=0, le=_MAX_LOGPROBS)] | None = None


class TextPart(_Model):
    """A part of a message's content."""

    type: str
    text: str | None = None


class ChatMessage(_Model):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None


class ChatRequest(_OpenAiRequest):
    """The body of /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=_MAX_LOGPROBS)] | None = None


class V2Request(_Model):
    """The body of /v2/models/NAME/generate."""

    text_input: str
    parameters: GenerateOptions = Field(default_factory=GenerateOptions)


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


def completion(request: CompletionRequest, codec: TextCodec) -> GenerationRequest:
    """Return what the engine is to do for a prompt."""
    prompt = request.prompt
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        prompt = prompt[0]
    if isinstance(prompt, str):
        tokens = codec.encode(prompt)
    elif any(isinstance(each, str) for each in prompt):
        raise ParameterError("prompt", "several prompts in one request are not supported")
    else:
        tokens = [each for each in prompt if isinstance(each, int)]
        codec.check_tokens(tokens)
    length = request.max_tokens or _COMPLETION_TOKENS
    return _generation(request, tokens, length, codec, request.response_format, request.logprobs)


def chat(request: ChatRequest, codec: TextCodec, max_tokens: int) -> GenerationRequest:
    """Return what the engine is to do; without a limit the answer may fill what is left."""
    messages = [{"role": each.role, "content": _content(each)} for each in request.messages]
    tokens = codec.encode(codec.render_chat(messages), special=False)
    length = request.max_completion_tokens or request.max_tokens
    logprobs = (request.top_logprobs or 0) if request.logprobs else None
    if length is None:
        length = max(1, max_tokens - len(tokens))
    return _generation(request, tokens, length, codec, request.response_format, logprobs)


def v2(request: V2Request, codec: TextCodec, max_tokens: int) -> GenerationRequest:
    """Return what the engine is to do; greedy unless the request has a temperature."""
    options = request.parameters
    if options.temperature is None:
        options = options.model_copy(update={"temperature": 0.0})
    tokens = codec.encode(request.text_input)
    length = options.max_tokens or max(1, min(_V2_TOKENS, max_tokens - len(tokens)))
    return _generation(options, tokens, length, codec, None, None)


def _generation(
    options: GenerateOptions,
    tokens: Sequence[int],
    length: int,
    codec: TextCodec,
    form: ResponseFormat | None,
    logprobs: int | None,
) -> GenerationRequest:
    stop = [options.stop] if isinstance(options.stop, str) else options.stop or []
    if "" in stop:
        raise ParameterError("stop", "a stop string is empty")
    sampling = TokenSampling(
        1.0 if options.temperature is None else options.temperature,
        1.0 if options.top_p is None else options.top_p,
        options.top_k or 0,
        options.seed,
    )
    grammar = _grammar(options, form, codec)
    return GenerationRequest(tuple(tokens), length, sampling, tuple(stop), grammar, logprobs)


def _grammar(options: GenerateOptions, form: ResponseFormat | None, codec: TextCodec) -> str | None:
    if options.guided_regex is not None:
        return codec.grammar("regex", options.guided_regex)
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return codec.grammar("json_schema", '{"type":"object"}')
    if form.json_schema is None:
        raise ParameterError("response_format.json_schema", "the JSON schema is missing")
    return codec.grammar("json_schema", orjson.dumps(form.json_schema.schema_).decode())


def _content(message: ChatMessage) -> str:
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    for part in message.content:
        if part.type != "text" or part.text is None:
            raise ParameterError("messages", f"content of the type {part.type!r} is not supported")
    return "".join(part.text or "" for part in message.content)
