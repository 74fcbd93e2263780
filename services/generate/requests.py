"""Requests for generated text: what OpenAI's API and the V2 `generate` calls accept.

What is not listed here is rejected by name, never ignored: it would change the answer. Each
`generation` returns what the engine is to do, and `grammar` the form that the answer must have;
INVALID_INPUT if that is not possible.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

import orjson
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.generate.engine import GenerationRequest
from mlctl.services.generate.grammar_problems import TOO_DEEP
from mlctl.services.generate.grammars import Grammar, unusable
from mlctl.services.generate.sampling import TokenSampling
from mlctl.services.generate.text import ContextLengthError, TextCodec
from mlctl.services.protocol.wire import shown

# OpenAI's own default of /v1/completions, and what V2 clients get.
_COMPLETION_TOKENS, _V2_TOKENS = 16, 256
# OpenAI's own limit, and that of V2.
_OPENAI_STOPS, _V2_STOPS = 4, 16
_MAX_LOGPROBS = 20
_MAX_FIELDS = 100
_MAX_PAIRS = 16
# OpenAI's rule for the name of a schema.
_NAME = r"^[a-zA-Z0-9_-]{1,64}$"
_Request = TypeVar("_Request", bound=BaseModel)


# Parameters of other servers that clients send with values that change no answer.
_NO_PENALTIES: Mapping[str, Sequence[object]] = {
    "presence_penalty": (0, 0.0),
    "frequency_penalty": (0, 0.0),
    "repetition_penalty": (1, 1.0),
    "length_penalty": (1, 1.0),
    "min_p": (0, 0.0),
    "min_tokens": (0,),
}
_OPENAI_NEUTRAL: Mapping[str, Sequence[object]] = {
    **_NO_PENALTIES,
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logit_bias": ({},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "ignore_eos": (False,),
    "use_beam_search": (False,),
    "skip_special_tokens": (True,),
    "stop_token_ids": ([],),
}
# TensorRT-LLM's.
_V2_NEUTRAL: Mapping[str, Sequence[object]] = {
    **_NO_PENALTIES,
    "bad_words": ("", [], [""]),
    "stop_words": ("", [], [""]),
    "beam_width": (1,),
    "min_length": (0, 1),
    "num_return_sequences": (1,),
    "return_log_probs": (False,),
    "return_context_logits": (False,),
    "return_generation_logits": (False,),
    "exclude_input_in_output": (True,),
}
_MESSAGE_NEUTRAL: Mapping[str, Sequence[object]] = {
    "annotations": ([],),
    "refusal": ("",),
    "tool_calls": ([],),
    "reasoning_content": ("",),
}
_NEUTRAL = frozenset({*_OPENAI_NEUTRAL, *_V2_NEUTRAL, *_MESSAGE_NEUTRAL})
# What a value must be, by pydantic's type of the error; other types have a message that says it.
_MUST_BE: Mapping[str, str] = {
    "bool_type": "true or false",
    "dict_type": "an object",
    "float_type": "a number",
    "int_type": "an integer of at most 64 bits",
    "list_type": "a list",
    "model_type": "an object",
    "string_pattern_mismatch": "1 to 64 of the characters a-z, A-Z, 0-9, - and _",
    "string_type": "a string",
    "too_short": "a list of at least 1 item",
}
_MISSING, _UNKNOWN = "missing", "extra_forbidden"
# What is wrong with a body, by a part of the parser's message.
_JSON_PROBLEMS: Mapping[str, str] = {
    "surrogate in string": "has a lone surrogate (half of a \\u pair) in a text",
    "infinity": "has a number beyond 1.8e308",
    "not valid UTF-8": "is not UTF-8",
    "depth limit": "is nested deeper than 1,024 levels",
    "empty": "is empty",
}
_PARAM_CHARS = 100
# What pydantic adds to the place of an error in one form of several.
_FORM = re.compile(r"str|int|list\[.*\]|\w+\[.*\]")


class ParameterError(MlctlError):
    """INVALID_INPUT about the request's parameter `param`."""

    def __init__(self, param: str, message: str, hint: str | None = None) -> None:
        self.param = param[:_PARAM_CHARS]
        super().__init__(ErrorCode.INVALID_INPUT, message, hint)


@contextmanager
def about(param: str) -> Iterator[None]:
    """Make INVALID_INPUT that is raised in the context one about the parameter `param`."""
    try:
        yield
    except ParameterError:
        raise
    except MlctlError as error:
        if error.code is not ErrorCode.INVALID_INPUT:
            raise
        raise ParameterError(param, error.message, error.hint) from error


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    neutral: ClassVar[Mapping[str, Sequence[object]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _without_neutral(cls, found: object) -> object:
        """Drop parameters that change nothing: null, OpenAI's default, and those in `neutral`."""
        if not isinstance(found, dict):
            return found
        if len(found) > _MAX_FIELDS:  # each unknown one would be an error of its own
            raise MlctlError(
                ErrorCode.INVALID_INPUT, f"the body has {len(found)} fields in one object"
            )
        return {
            name: value
            for name, value in found.items()
            if value is not None and not _changes_nothing(cls.neutral, name, value)
        }


def _changes_nothing(neutral: Mapping[str, Sequence[object]], name: str, value: object) -> bool:
    """Return whether `value` is one of the `neutral` values of the parameter `name`.

    True is not 1, and False is not 0.
    """
    return any(type(value) is type(each) and value == each for each in neutral.get(name, ()))


class GenerateOptions(_Model):
    """How to continue a prompt; the same for all APIs."""

    max_stops: ClassVar[int] = _OPENAI_STOPS
    prompt_field: ClassVar[str] = "prompt"
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] | None = None
    stop: str | Annotated[list[str], Field(fail_fast=True)] = Field(default_factory=list)
    guided_regex: str | None = None

    def grammar(self) -> Grammar | None:
        """Return the grammar that the answer must follow; None for any text."""
        return None if self.guided_regex is None else Grammar("regex", self.guided_regex)

    def request(
        self, tokens: Sequence[int], length: int, logprobs: int | None = None
    ) -> GenerationRequest:
        """Return the request to continue `tokens` by at most `length` tokens with these options."""
        if not tokens:
            raise ParameterError(self.prompt_field, "the prompt is empty")
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        if "" in stop:
            raise ParameterError("stop", "a stop string is empty")
        if len(stop) > self.max_stops:
            raise ParameterError(
                "stop",
                f"Invalid 'stop': array too long. Expected an array with maximum length "
                f"{self.max_stops}, but got an array with length {len(stop)} instead",
            )
        sampling = TokenSampling(self.temperature, self.top_p, self.top_k, self.seed)
        return GenerationRequest(tuple(tokens), length, sampling, stop, logprobs=logprobs)


# Options of llguidance, with which an answer may be no JSON.
_LIBRARY_OPTIONS = "x-guidance"


class _Schema(_Model):
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    name: Annotated[str, Field(pattern=_NAME)] | None = None
    description: str = ""
    strict: bool = True  # as answers always are


class ResponseFormat(_Model):
    """The form of an answer: text, any JSON object, or JSON after a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: _Schema | None = None

    def grammar(self) -> Grammar | None:
        """Return the grammar of such answers; None for text."""
        if self.json_schema is not None and self.type != "json_schema":
            raise ParameterError(
                "response_format.json_schema", f"a format of the type {self.type!r} has no schema"
            )
        if self.type == "text":
            return None
        if self.type == "json_object":
            return Grammar("json_schema", '{"type":"object"}')
        if self.json_schema is None:
            raise ParameterError("response_format.json_schema", "the JSON schema is missing")
        if _LIBRARY_OPTIONS in self.json_schema.schema_:
            raise ParameterError(
                "response_format.json_schema",
                f"the JSON schema has the key {_LIBRARY_OPTIONS!r}, which is not JSON Schema's",
            )
        try:
            return Grammar("json_schema", orjson.dumps(self.json_schema.schema_).decode())
        except orjson.JSONEncodeError:
            error = unusable("json_schema", TOO_DEEP)
            raise ParameterError("response_format.json_schema", error.message) from None


class GenerateStreamOptions(_Model):
    """Options of a streamed answer; with `include_usage` its last event counts the tokens."""

    neutral = {"include_obfuscation": (False,)}
    include_usage: bool = False


def _check_pairs(found: object) -> object:
    """Reject many pairs before each of them is checked."""
    if isinstance(found, dict) and len(found) > _MAX_PAIRS:
        raise ParameterError("metadata", f"metadata has {len(found)} pairs (limit {_MAX_PAIRS})")
    return found


class PredictedContent(_Model):
    """The answer that a caller expects, from which a server may gain time."""

    type: Literal["content"]
    content: str | Annotated[list[Any], Field(min_length=1)]


class OpenAiRequest(GenerateOptions):
    """What the bodies of OpenAI's API have in common."""

    neutral = _OPENAI_NEUTRAL
    model: str
    stream: bool = False
    stream_options: GenerateStreamOptions | None = None
    # Of the caller's own records, or of how fast an answer comes: they change no answer.
    metadata: Annotated[dict[str, str], BeforeValidator(_check_pairs)] | None = None
    parallel_tool_calls: bool | None = None
    prediction: PredictedContent | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    user: str | None = None
    response_format: ResponseFormat | None = None

    def grammar(self) -> Grammar | None:
        regex = super().grammar()
        form = None if self.response_format is None else self.response_format.grammar()
        if regex and form:
            raise ParameterError("guided_regex", "the request has a response_format as well")
        return regex or form

    def generation(self, codec: TextCodec, max_tokens: int) -> GenerationRequest:
        """Return what the engine is to do; a prompt has `max_tokens` with its answer."""
        raise NotImplementedError

    def check(self) -> None:
        """ParameterError for parameters that have no meaning without others."""
        if self.stream_options is not None and not self.stream:
            raise _only_with("stream_options", "stream")


class CompletionRequest(OpenAiRequest):
    """The body of /v1/completions. `prompt` is text or tokens."""

    prompt: (
        str
        | Annotated[list[str], Field(fail_fast=True)]
        | Annotated[list[int], Field(fail_fast=True)]
    )
    logprobs: Annotated[int, Field(ge=0, le=_MAX_LOGPROBS)] | None = None

    def generation(self, codec: TextCodec, max_tokens: int) -> GenerationRequest:
        prompt = self.prompt
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
            prompt = prompt[0]
        if isinstance(prompt, str):
            codec.check_size([prompt], max_tokens)
            tokens = codec.encode(prompt)
        elif any(isinstance(each, str) for each in prompt):
            raise ParameterError("prompt", "several prompts in one request are not supported")
        else:
            if len(prompt) > max_tokens:
                raise ContextLengthError(max_tokens, f"the prompt has {len(prompt)}")
            tokens = [each for each in prompt if isinstance(each, int)]
            with about(self.prompt_field):
                codec.check_tokens(tokens)
        return self.request(tokens, self.max_tokens or _COMPLETION_TOKENS, self.logprobs)


class TextPart(_Model):
    """A part of a message's content."""

    type: Literal["text"]
    text: str

    @model_validator(mode="before")
    @classmethod
    def _only_text(cls, found: object) -> object:
        kind = found.get("type") if isinstance(found, dict) else "text"
        if isinstance(kind, str) and kind != "text":
            raise ParameterError("messages", f"content of the type {shown(kind)} is not supported")
        return found


class ChatMessage(_Model):
    """A message of a conversation."""

    neutral = _MESSAGE_NEUTRAL
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(min_length=1, fail_fast=True)] | None = None
    name: str | None = None

    @model_validator(mode="after")
    def _has_content(self) -> Self:
        if self.content is None and self.role != "assistant":
            raise ParameterError("messages", f"a message of the role {self.role!r} has no content")
        return self

    @property
    def fields(self) -> dict[str, str]:
        """What the chat template gets."""
        name = {} if self.name is None else {"name": self.name}
        return {"role": self.role, "content": self.text, **name}

    @property
    def text(self) -> str:
        """The text of all parts."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content or ())


class ChatRequest(OpenAiRequest):
    """The body of /v1/chat/completions."""

    prompt_field = "messages"
    messages: Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=_MAX_LOGPROBS)] | None = None

    def generation(self, codec: TextCodec, max_tokens: int) -> GenerationRequest:
        """Without a limit the answer may fill what is left of `max_tokens`."""
        messages = [each.fields for each in self.messages]
        codec.check_size([each["content"] for each in messages], max_tokens)
        with about(self.prompt_field):
            prompt = codec.render_chat(messages)
        codec.check_size([prompt], max_tokens)
        tokens = codec.encode(prompt, special=False)
        length = self.max_completion_tokens or self.max_tokens or max(1, max_tokens - len(tokens))
        return self.request(tokens, length, (self.top_logprobs or 0) if self.logprobs else None)

    def check(self) -> None:
        super().check()
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise ParameterError(
                "max_tokens", "max_tokens and max_completion_tokens are two names of one limit"
            )
        if self.top_logprobs is not None and not self.logprobs:
            raise _only_with("top_logprobs", "logprobs")


class V2Options(GenerateOptions):
    """The parameters of V2: greedy unless they have a temperature."""

    neutral = _V2_NEUTRAL
    max_stops = _V2_STOPS
    prompt_field = "text_input"
    temperature: Annotated[float, Field(ge=0, le=100)] = 0.0
    stream: bool = False


class V2Request(_Model):
    """The body of /v2/models/NAME/generate.

    TensorRT-LLM's form has the parameters beside `text_input`, and two of them by other names.
    """

    text_input: str
    id: str | None = None
    parameters: V2Options = V2Options()

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, found: object) -> object:
        """Move what stands beside `text_input` to the parameters."""
        if not isinstance(found, dict):
            return found
        given = {} if found.get("parameters") is None else found["parameters"]
        if not isinstance(given, dict):
            return found
        names = {"stop_words": "stop", "random_seed": "seed"}
        kept = {name: value for name, value in found.items() if name in cls.model_fields}
        options = dict(given)
        for name, value in found.items():
            if name in kept or value is None or _changes_nothing(_V2_NEUTRAL, name, value):
                continue
            option = names.get(name) or name
            if options.get(option) is not None:
                raise ParameterError(option, f"the parameter {shown(option)} is given twice")
            options[option] = value
        return {**kept, "parameters": options}

    def grammar(self) -> Grammar | None:
        """Return the grammar that the answer must follow; None for any text."""
        return self.parameters.grammar()

    def generation(self, codec: TextCodec, max_tokens: int) -> GenerationRequest:
        """Return what the engine is to do; a prompt has `max_tokens` with its answer."""
        codec.check_size([self.text_input], max_tokens)
        tokens = codec.encode(self.text_input)
        length = self.parameters.max_tokens or max(1, min(_V2_TOKENS, max_tokens - len(tokens)))
        return self.parameters.request(tokens, length)


def parse_request(kind: type[_Request], body: bytes) -> _Request:
    """Return the body as `kind`; ParameterError names the parameter that is wrong."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise _not_json(error) from None
    if not isinstance(document, dict):
        raise MlctlError(ErrorCode.INVALID_INPUT, "the body is not a JSON object")
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        raise _wrong_parameter(error) from None


def _not_json(error: orjson.JSONDecodeError) -> MlctlError:
    """Return INVALID_INPUT for a body that the parser rejects."""
    problems = (problem for part, problem in _JSON_PROBLEMS.items() if part in error.msg)
    place = f"line {error.lineno}, column {error.colno}"
    return MlctlError(
        ErrorCode.INVALID_INPUT, f"the body {next(problems, 'is not JSON')} ({place})"
    )


def _wrong_parameter(error: ValidationError) -> ParameterError:
    """Return the error of the first parameter that is wrong.

    A value that has none of several forms has an error for each: those of the deepest place count.
    """
    found = error.errors(include_url=False, include_context=False, include_input=False)
    problems: dict[tuple[str, ...], dict[str, None]] = {}
    for each in found:
        if each["loc"][0] != found[0]["loc"][0]:
            break
        *outer, last = map(str, each["loc"])
        place = [part for part in outer if not _FORM.fullmatch(part)]
        if each["type"] == _UNKNOWN or not _FORM.fullmatch(last):
            place.append(last)
        kind = each["type"]
        needed = kind if kind in (_MISSING, _UNKNOWN) else _MUST_BE.get(kind, each["msg"])
        problems.setdefault(tuple(place), {})[needed.removeprefix("Input should be ")] = None
    deepest = max(problems, key=len)
    param, needs = ".".join(deepest), problems[deepest]
    if _UNKNOWN in needs:
        value = " with this value" if deepest[-1] in _NEUTRAL else ""
        return ParameterError(param, f"the parameter {shown(param)} is not supported{value}")
    if _MISSING in needs:
        return ParameterError(param, f"the parameter {shown(param)} is missing")
    return ParameterError(param, f"{shown(param)} must be {' or '.join(needs)}")


def _only_with(param: str, other: str) -> ParameterError:
    return ParameterError(param, f"The '{param}' parameter is only allowed when '{other}' is true")
