"""The endpoints of language models in the OpenAPI document: OpenAI's, and V2's `generate` calls.

The schemas of requests are those that the server validates with.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from services.online.openapi.model import ApiModel

Schema = dict[str, Any]
_REFERENCE = "#/components/schemas/{model}"
_STATUSES = (400, 401, 404, 413, 415, 500, 503, 504)
_V2_ANSWER = {
    "type": "object",
    "required": ["model_name", "model_version", "text_output"],
    "properties": {
        name: {"type": "string"} for name in ("model_name", "model_version", "text_output")
    },
}
_OPENAI_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "string"},
            },
        }
    },
}


def generation_document(models: Iterable[ApiModel]) -> tuple[Schema, Schema]:
    """Return the paths and the schemas of language `models`; both are empty for none."""
    # Only servers and tools of language models have these packages.
    from services.generate.requests import ChatRequest, CompletionRequest, V2Request

    paths: Schema = {}
    schemas: Schema = {"OpenAiError": _OPENAI_ERROR, "GeneratedText": _V2_ANSWER}
    for kind in (CompletionRequest, ChatRequest, V2Request):
        schema = kind.model_json_schema(ref_template=_REFERENCE)
        schemas |= schema.pop("$defs", {}) | {kind.__name__: schema}
    for path, name, summary in (
        ("/v1/completions", "CompletionRequest", "Continue a prompt"),
        ("/v1/chat/completions", "ChatRequest", "Answer a conversation"),
    ):
        paths[path] = {"post": _operation(name, summary, name, {"type": "object"}, "OpenAiError")}
    listed = {"type": "object", "required": ["object", "data"]}
    paths["/v1/models"] = {"get": _operation("models", "The models", None, listed, "OpenAiError")}
    for model in models:
        root = f"/v2/models/{quote(model.name, safe='')}"
        answer = {"$ref": "#/components/schemas/GeneratedText"}
        for verb in ("generate", "generate_stream"):
            name = f"{model.identifier}_{verb}"
            summary = f"Continue a text with model {model.name}"
            operation = _operation(name, summary, "V2Request", answer, "Error")
            paths[f"{root}/{verb}"] = {"post": operation}
    return paths, schemas


def _operation(name: str, summary: str, body: str | None, answer: Schema, error: str) -> Schema:
    contents = {"application/json": {"schema": answer}}
    if body is not None:
        contents["text/event-stream"] = {"schema": {"type": "string"}}
    failed = _json(error)
    responses = {
        "200": {"description": "The answer.", "content": contents},
        **{str(status): {"description": "An error.", "content": failed} for status in _STATUSES},
    }
    operation: Schema = {"operationId": name, "summary": summary, "responses": responses}
    if body is not None:
        operation["requestBody"] = {"required": True, "content": _json(body)}
    return operation


def _json(schema: str) -> Schema:
    return {"application/json": {"schema": {"$ref": _REFERENCE.format(model=schema)}}}
