"""What a server answers over HTTP, as an OpenAPI 3.1 document."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from mlctl.services.online.openapi.model import ApiModel, distinct, type_name
from mlctl.services.online.openapi.schemas import (
    Schema,
    described_schemas,
    error_codes,
    error_schema,
    example_request,
    records_schema,
    request_schema,
    response_schema,
)

_ABOUT = """\
Every error is `{"error": sentence, "code": stable name, "hint": what to do}`. A request of
`application/octet-stream` is the JSON of a request, whose length in bytes is in the header
Inference-Header-Content-Length, and then the raw little-endian data of the inputs that have
the parameter `binary_data_size`, in their order; each element of BYTES comes after its length in
four bytes. If the header is 0, the body is the raw data of a model's only input, whose shape
follows from its size; other models reject it. A response has the same form where binary data was
requested.
The typed API `/predict` takes an object with an array for each input, as `/docs.json` describes it,
or rows as an array of objects."""
_ANY = {"type": "string", "format": "binary"}
_LATER = "Repeat it after the time that Retry-After names."
_WORDS = {400: "The request is wrong.", 429: _LATER, 503: _LATER}


def to_text(content: Schema) -> str:
    """Return the text of the document, as it is written and served."""
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def document(
    models: Sequence[ApiModel], *, version: str | None = None, token: bool | None = None
) -> Schema:
    """Return the document of a server of `models`, the default one first.

    `version` is the digest of all together; `token` is whether the server requires one, if that is
    known.
    """
    paths: Schema = dict(_server_paths(token=token is not False))
    schemas: Schema = {"Error": error_schema(), **described_schemas()}
    labels = distinct((model.identifier for model in models), type_name)
    for label, model in zip(labels, models, strict=True):
        kind = type_name(label)
        schemas[f"{kind}Request"] = request_schema(model.inputs, model.outputs, model.missing)
        schemas[f"{kind}Response"] = response_schema(model.name, model.digest, model.outputs)
        paths.update(_model_paths(label, model))
        if model.takes_columns:
            schemas[f"{kind}Rows"] = records_schema(model.inputs, model.missing)
            path = "/predict" if len(models) == 1 else f"/predict/{quote(model.name, safe='')}"
            paths[path] = {"post": _predict(model, label, kind)}
    secured: Schema = {}
    if token is not False:
        schemes = {"token": {"type": "http", "scheme": "bearer"}}
        secured = {"security": [{"token": []}, *([] if token else [{}])]}
    else:
        schemes = {}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": ", ".join(model.name for model in models),
            "version": version or models[0].digest or "unknown",
            "summary": "Inference by the V2 protocol (Open Inference Protocol).",
            "description": _ABOUT,
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        **secured,
        "components": {
            "schemas": schemas,
            "responses": {f"Error{status}": _error(status) for status in error_codes()},
            "securitySchemes": schemes,
        },
    }


def _server_paths(*, token: bool) -> Iterator[tuple[str, Schema]]:
    probe: Schema = {} if not token else {"security": [{}]}
    described = _get("server", "The server's name, version and extensions", "Server")
    yield "/v2", {"get": described}
    for path, name, schema in (
        ("/v2/health/live", "live", "Live"),
        ("/v2/health/ready", "ready", "Ready"),
    ):
        probed = _get(name, f"Whether the server is {name}", schema, fails=schema)
        yield path, {"get": {**probed, **probe}}
    question = {"content": _json("IndexQuestion"), "required": False}
    index = _operation("index", "The models, and whether they are ready", "Index", 400, 413, 503)
    yield "/v2/repository/index", {"post": {**index, "requestBody": question}}
    statistics = _get("statistics", "Counters of all models of this worker", "Statistics")
    yield "/v2/models/stats", {"get": statistics}


def _model_paths(label: str, model: ApiModel) -> Iterator[tuple[str, Schema]]:
    root = f"/v2/models/{quote(model.name, safe='')}"
    for path, suffix in ((root, ""), (f"{root}/versions/{{version}}", "Version")):
        more: Schema = {"parameters": [_version(model)]} if suffix else {}
        named = f"{label}{suffix}"
        about = f"of model {model.name}"
        described = _get(f"{named}Metadata", f"Versions and tensors {about}", "Metadata", 404)
        yield path, {"get": described, **more}
        ready = _get(f"{named}Ready", f"Readiness {about}", "ModelReady", 404, fails="ModelReady")
        yield f"{path}/ready", {"get": ready, **more}
        config = _get(f"{named}Config", f"How batches are made {about}", "Configuration", 404, 503)
        yield f"{path}/config", {"get": config, **more}
        stats = _get(f"{named}Stats", f"Counters {about}", "Statistics", 404, 503)
        yield f"{path}/stats", {"get": stats, **more}
        yield f"{path}/infer", {"post": _infer(model, named, type_name(label)), **more}
        yield f"{path}/infer_stream", {"post": _stream(model, named, type_name(label)), **more}


def _infer(model: ApiModel, named: str, kind: str) -> Schema:
    answer = {
        "description": "The answer.",
        "headers": {
            "X-Request-Id": {"schema": {"type": "string"}},
            "Server-Timing": {"schema": {"type": "string"}},
            "Inference-Header-Content-Length": {
                "description": "The length of the JSON, if binary data follows it.",
                "schema": {"type": "integer", "minimum": 1},
            },
        },
        "content": _json(f"{kind}Response") | {"application/octet-stream": {}},
    }
    made = _operation(f"{named}Infer", f"Score with model {model.name}", "Error", *_INFER_ERRORS)
    made["responses"]["200"] = answer
    return {**made, "parameters": _headers(model), "requestBody": _body(model, kind)}


def _predict(model: ApiModel, label: str, kind: str) -> Schema:
    made = _operation(
        f"{label}Predict", f"Score rows of a table with model {model.name}", "Error", *_INFER_ERRORS
    )
    description = (
        "A list with a value for each row; an object of such lists if there are several outputs."
    )
    made["responses"]["200"] = {"description": description, "content": {"application/json": {}}}
    return {**made, "requestBody": {"required": True, "content": _json(f"{kind}Rows")}}


def _stream(model: ApiModel, named: str, kind: str) -> Schema:
    made = _operation(
        f"{named}InferStream",
        f"Stream the answer of model {model.name}",
        "Error",
        *_INFER_ERRORS,
    )
    events = {"text/event-stream": {"schema": _event(kind)}}
    description = (
        "Events, each with one piece as the JSON of a response; the last is `end` or `error`."
    )
    made["responses"]["200"] = {"description": description, "content": events}
    return {**made, "parameters": _headers(model), "requestBody": _body(model, kind)}


def _event(kind: str) -> Schema:
    schemas = [{"$ref": f"#/components/schemas/{name}"} for name in (f"{kind}Response", "Error")]
    content = {"contentMediaType": "application/json", "contentSchema": {"anyOf": schemas}}
    return {
        "type": "object",
        "required": ["data"],
        "properties": {
            "event": {"enum": ["message", "end", "error"]},
            "data": {"type": "string", **content},
        },
    }


_INFER_ERRORS = (400, 404, 413, 415, 429, 503, 504)


def _body(model: ApiModel, kind: str) -> Schema:
    plain = _json(f"{kind}Request")
    if (shown := example_request(model.inputs)) is not None:
        plain["application/json"]["example"] = shown
    content = plain | {"application/octet-stream": {"schema": _ANY}}
    return {"required": True, "content": content}


def _headers(model: ApiModel) -> list[Schema]:
    def header(name: str, schema: Schema, description: str) -> Schema:
        return {"name": name, "in": "header", "schema": schema, "description": description}

    return [
        header(
            "Inference-Header-Content-Length",
            {"type": "integer", "minimum": 0 if model.takes_bare_tensor else 1},
            "The length of the JSON in bytes, if binary data follows it."
            + " With 0 the body is the data of the input alone." * model.takes_bare_tensor,
        ),
        header(
            "Mlctl-Priority",
            {"enum": ["high", "normal", "0", "1", "2"]},
            "Wins over the body's `priority`.",
        ),
        header("X-Request-Id", {"type": "string"}, "Comes back with the answer."),
    ]


def _version(model: ApiModel) -> Schema:
    schema: Schema = {"type": "string", "minLength": 1, "examples": [model.digest]}
    description = "The digest of the model; another one is not found."
    return {
        "name": "version",
        "in": "path",
        "required": True,
        "schema": schema,
        "description": description,
    }


def _get(name: str, summary: str, schema: str, *statuses: int, fails: str | None = None) -> Schema:
    """`fails` is the schema of the answer 503, where that is no error."""
    made = _operation(name, summary, schema, 400, *statuses)
    if fails is not None:
        made["responses"]["503"] = {"description": "It is not.", "content": _json(fails)}
    return made


def _operation(name: str, summary: str, schema: str, *statuses: int) -> Schema:
    answers: Schema = {"200": {"description": "The answer.", "content": _json(schema)}}
    for status in (*statuses, 401, 500):
        answers[str(status)] = {"$ref": f"#/components/responses/Error{status}"}
    return {"operationId": name, "summary": summary, "responses": answers}


def _json(schema: str) -> Schema:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}


def _error(status: int) -> Schema:
    codes = ", ".join(f"`{code}`" for code in error_codes()[status])
    words = _WORDS.get(status, f"{HTTPStatus(status).phrase}.")
    content: dict[str, Any] = _json("Error")
    headers: Schema = {}
    if status == 400:  # what is no HTTP is answered before it is a request
        content |= {"text/plain": {"schema": {"type": "string"}}}
    elif status in {429, 503}:
        headers = {"headers": {"Retry-After": {"schema": {"type": "integer", "minimum": 1}}}}
    return {"description": f"{words} Codes: {codes}.", **headers, "content": content}
